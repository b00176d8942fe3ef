"""The memory block: what the step needs against what a device has, the curve, what is alive at the peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hloscope.analysis.memory import BufferFamily, Memory
from hloscope.analysis.place import phase_of, provenance
from hloscope.hlo import Instruction
from hloscope.report.figures import bar, curve
from hloscope.report.model import Target
from hloscope.report.tables import Column, table
from hloscope.report.terminal import beside, cut, indented, joined, words
from hloscope.units import UNKNOWN, count, percent, plural, size, where

_SHOWN_FAMILIES = 8
_TITLE = 100
_BAR, _CURVE = 40, 60
# Padding below a tenth is not worth a word.
_NOTABLE_PADDING = 1.1
_LEGEND = (
    ("arguments", "parameters, optimizer state, batch"),
    ("arena", "the one block planned for temporaries"),
    ("peak", "the most that is alive at once, arguments included"),
    ("alias", "results in place of donated arguments"),
)
_TEMP = "the figure that people quote; in programs with loops it exceeds the arena"
_VMEM = "where nearly everything fits into VMEM, the compiler counts its peak there"


def memory(figures: Memory, target: Target, width: int, everything: bool) -> Iterator[RenderableType]:
    """The whole block."""
    yield _title(figures, target, width)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=9, no_wrap=True)
    grid.add_column(min_width=10, no_wrap=True, justify="right")
    for name, value, text in (*_figures(figures, width), *_asides(figures)):
        grid.add_row(name, value, text)
    yield indented(grid)
    yield from _live(figures)
    yield from _legend()
    yield from _alive(figures, width, everything)


def _title(figures: Memory, target: Target, width: int) -> RenderableType:
    limit = figures.hbm_limit_bytes
    if limit is not None:
        right = f"of {size(limit)} usable HBM"
    elif target.may_be_for_tpus:
        right = "HBM unknown: --topology names the chip"
    else:
        right = f"for {str(target.platform).upper()}s: no limit known"
    title = Table.grid(expand=True)
    title.add_column()
    title.add_column(justify="right")
    title.width = min(width, _TITLE)
    title.add_row(words(("Memory per device", "bold")), words((right, "dim")))
    return title


_Row = tuple[str, str | Text, Text]


def _figures(figures: Memory, width: int) -> Iterator[_Row]:
    """The figures that people go by: total, peak and temp."""
    yield "total", _bold(figures.total_bytes), _total(figures, width)
    parts = " + ".join(_parts(figures))
    if parts:
        yield "", "", words(f"= {parts}")
    yield "peak", _bold(figures.peak_bytes), words(joined(_peak(figures)))
    yield "temp", _bold(figures.temp_bytes), words(_temp(figures))
    if figures.temp_bytes is not None:
        yield "", "", words((_TEMP, "dim"))


def _asides(figures: Memory) -> Iterator[_Row]:
    if figures.output_bytes is not None:
        yield "outputs", size(figures.output_bytes), words(_alias(figures))
    if figures.fragmentation_bytes:
        idle = "of the arena even at the peak (fragmentation)"
        yield "idle", size(figures.fragmentation_bytes), words(idle)
    spaces = sorted(((b, name) for name, b in figures.spaces.items() if b), reverse=True)
    if spaces:
        elsewhere = joined(f"{size(b)} {cut(name, 20)}" for b, name in spaces)
        yield "elsewhere", "", words(elsewhere)
    yield from _disagreements(figures)


def _disagreements(figures: Memory) -> Iterator[_Row]:
    for disagreement in figures.disagreements:
        yield "", "", words((cut(disagreement, 200), "dim"))
    if figures.compiler_peak_bytes not in (None, figures.peak_bytes):
        yield "", "", words((_VMEM, "dim"))


def _bold(value: int | None) -> Text:
    return words((size(value), "bold"))


def _total(figures: Memory, width: int) -> Text:
    total, limit = figures.total_bytes, figures.hbm_limit_bytes
    if total is None:
        return words("the file does not tell")
    arguments = min(figures.argument_bytes or 0, total)
    drawn = bar((arguments, total - arguments), limit or total, min(_BAR, width - 50))
    return words((drawn, _colour(total, limit)), "  ", _verdict(total, limit))


def _colour(total: int, limit: int | None) -> str:
    if limit is None:
        return "cyan"
    return "bold red" if total > limit else "yellow" if total > 0.95 * limit else "green"


def _verdict(total: int, limit: int | None) -> str | tuple[str, str]:
    if limit is None:
        return ""
    if total > limit:
        return f"{size(total - limit)} too much", "bold red"
    return f"{percent(total, limit)}, {size(limit - total)} left"


def _parts(figures: Memory) -> Iterator[str]:
    """What the total is the sum of; what is left is named if it is a hundredth of it."""
    arguments, arena, total = figures.argument_bytes, figures.arena_bytes, figures.total_bytes
    if arguments is not None:
        yield f"arguments {size(arguments)}"
    if arena is not None:
        yield f"arena {size(arena)}"
    if arguments is not None and arena is not None and total is not None:
        other = total - arguments - arena
        if other * 100 >= total:
            yield f"other {size(other)}"


def _peak(figures: Memory) -> Iterator[str | None]:
    instruction = figures.peak_instruction
    if instruction is not None:
        yield f"at {cut(instruction.name, 40)}"
        yield from _place(instruction)


def _place(instruction: Instruction) -> Iterator[str | None]:
    phase = phase_of(instruction).value
    yield phase if phase != UNKNOWN else None
    yield cut(where(provenance(instruction).source), 40)


def _temp(figures: Memory) -> str:
    temp, arena = figures.temp_bytes, figures.arena_bytes
    if temp is None:
        return "no dump holds it; the arena stands for it"
    # Of a step whose buffers all but fit into VMEM there is next to no arena, or temp, to compare.
    times = f", {temp / arena:.2f} × the arena" if arena and temp * 100 >= arena else ""
    return f"the compiler's temp_size_in_bytes{times}"


def _alias(figures: Memory) -> str:
    part = {0: "nothing", figures.output_bytes: "all"}.get(figures.alias_bytes, size(figures.alias_bytes))
    return f"{part} of it in place of donated arguments (alias)"


def _live(figures: Memory) -> Iterator[RenderableType]:
    drawn = curve([(p.position, p.bytes) for p in figures.live], _CURVE)
    if not drawn:
        return
    at = figures.peak_position
    place = "" if at is None else f", peak at step {count(at)} of {count(figures.schedule_length)}"
    text = f"live bytes over the schedule{place}"
    yield indented(beside(words((drawn, "cyan")), words((text, "dim"))))


def _legend() -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, meaning in _LEGEND:
        grid.add_row(name, meaning, style="dim")
    yield indented(grid)


def _alive(figures: Memory, width: int, everything: bool) -> Iterator[RenderableType]:
    families = figures.families_at_peak
    if not families:
        return
    shown = families if everything else families[:_SHOWN_FAMILIES]
    rest = families[len(shown) :]
    columns = (
        Column(title="Alive at the peak", shrinks=True, most=44),
        Column(title="shape", shrinks=True),
        Column(title="bytes", right=True, style="bold"),
        Column(title="n", right=True),
        *([Column(title="padding", right=True)] if any(map(_padding, shown)) else []),
        Column(title="phase", shrinks=True, optional=2),
        Column(title="made by", shrinks=True, optional=1, cut_front=True, style="dim"),
    )
    yield words()
    yield table(columns, list(_family_rows(shown)), width)
    if rest:
        left = sum(f.bytes for f in rest)
        yield indented(words((f"{plural(len(rest), 'more family')}, {size(left)}, with --all", "dim")))


def _family_rows(families: Sequence[BufferFamily]) -> Iterator[list[str]]:
    padded = any(map(_padding, families))
    for family in families:
        yield [
            family.label,
            family.shape,
            size(family.bytes),
            count(family.count),
            *([_padding(family)] if padded else []),
            ", ".join(family.phases),
            where(family.source),
        ]


def _padding(family: BufferFamily) -> str:
    """How much larger than its elements a buffer is, where that is worth a word."""
    if not family.unpadded_bytes or family.bytes < _NOTABLE_PADDING * family.unpadded_bytes:
        return ""
    return f"× {family.bytes / family.unpadded_bytes:.1f}"
