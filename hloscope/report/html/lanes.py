"""The schedule as lanes: what cores, links, SparseCores and copy engines do at a time, and the waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from hloscope.analysis.costs import is_collective
from hloscope.report.escape import printable
from hloscope.report.html.charts import BLUE, GREEN, ORANGE, PINK, RED, Figure, checked, text
from hloscope.report.terminal import cut
from hloscope.units import duration, plural

if TYPE_CHECKING:
    from hloscope.analysis.step_time import StepTime
    from hloscope.analysis.step_timeline import Line, Resource, Timeline
    from hloscope.hlo import Computation, Instruction

# Computations to choose from, and blocks in each: more is neither found nor seen.
_SHOWN, _BLOCKS = 6, 2500
_LEAST = 0.005  # of the step
_CORES, _LINKS = "cores", "links"
# Kinds of blocks by colour.
_COLOURS = {"work": BLUE, "loop": GREEN, "collective": PINK, "beside": ORANGE, "wait": RED}
# Of their edges: a block too thin to have an inside is still seen, on light and on dark.
_EDGES = {
    "work": "#00486f",
    "loop": "#00614a",
    "collective": "#96436f",
    "beside": "#936500",
    "wait": "#8a3c00",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Something that takes time in a lane, in seconds from the begin of the run."""

    lane: str
    kind: str
    name: str
    begins: float
    seconds: float
    exposed: float | None = None


def lanes(time: StepTime) -> dict[str, Figure]:
    """A chart for each computation with a part of the step of its own, the largest first, by a title; empty if no
    time is known."""
    timeline = time.timeline
    if timeline is None:
        return {}
    computations = timeline.module.control_computations
    uncounted = _uncounted(timeline)
    # A body that runs nobody knows how often counts as one run: it may be most of the step.
    own = {
        c.id: (1 if c.id in uncounted else timeline.runs.get(c.id, 0)) * _own(timeline.lines[c.id])
        for c in computations
    }
    least = _LEAST * timeline.seconds
    chosen = nlargest(_SHOWN, (c for c in computations if own[c.id] > least), key=lambda c: own[c.id])
    return {_title(timeline, c): _chart(timeline, c) for c in chosen}


def _uncounted(timeline: Timeline) -> set[int]:
    """Computations of the main line that run nobody knows how often: those of loops without a trip count, and what
    they call."""
    found: set[int] = set()
    for computation in reversed(timeline.module.control_computations):  # callers first
        if computation.id not in found and not timeline.runs.get(computation.id):
            continue
        for ident in timeline.lines[computation.id].calls:
            call = computation.by_id[ident]
            if computation.id in found or _is_endless(timeline, call):
                found.update(c.id for c in call.called_computations if not timeline.runs.get(c.id))
    return found


def _is_endless(timeline: Timeline, call: Instruction) -> bool:
    return call.opcode == "while" and timeline.module.trip_counts[call.id] is None


def _own(line: Line) -> float:
    """The seconds of one run without those of what it calls."""
    return line.seconds - sum(line.calls.values())


def _title(timeline: Timeline, computation: Computation) -> str:
    seconds = duration(timeline.lines[computation.id].seconds)
    if computation.id == timeline.module.entry.id:
        return f"the entry, {seconds}"
    runs = timeline.runs.get(computation.id)
    times = f"{runs} × {seconds}" if runs else f"{seconds}, runs unknown"
    # The name as a whole: clones, which are alike in all else, differ at its end.
    return f"{times}, {cut(printable(computation.name), 200)}"


def _blocks(timeline: Timeline, computation: Computation) -> Iterator[Block]:
    line, by_id = timeline.lines[computation.id], computation.by_id
    for ident, begins in line.begins.items():
        work = by_id[ident]
        kind = "loop" if ident in line.calls else "collective" if is_collective(work) else "work"
        seconds = line.calls.get(ident) or line.own.get(ident, 0.0)
        yield Block(lane=_CORES, kind=kind, name=_name(work), begins=begins, seconds=seconds)
    for interval in line.intervals:
        if interval.duration is None:
            continue
        ends_at, exposed = interval.begins + interval.duration, interval.exposed or 0.0
        kind = "collective" if interval.resource[0] == _LINKS else "beside"
        yield Block(
            lane=_lane(interval.resource), kind=kind, name=_name(interval.start), begins=interval.begins,
            seconds=interval.duration, exposed=exposed,
        )  # fmt: skip
        if exposed:
            name = f"waits for {_name(interval.start)}"
            yield Block(lane=_CORES, kind="wait", name=name, begins=ends_at - exposed, seconds=exposed)


def _lane(resource: Resource) -> str:
    return " ".join(part for part in resource if part != "thread")


def _name(instruction: Instruction) -> str:
    return f"{instruction.opcode} {instruction.name}"


def _chart(timeline: Timeline, computation: Computation) -> Figure:
    line = timeline.lines[computation.id]
    blocks = [b for b in _blocks(timeline, computation) if b.seconds > 0]
    shown = nlargest(_BLOCKS, blocks, key=lambda b: b.seconds)
    order = list(dict.fromkeys([_CORES, *sorted({b.lane for b in shown})]))
    traces = [_trace(kind, [b for b in shown if b.kind == kind]) for kind in _COLOURS]
    loops = [i for i in line.unknown if _is_endless(timeline, i)]
    layout: dict[str, Any] = {
        "meta": {"note": "; ".join(_left_out(line, blocks, loops))},
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"range": [0, line.seconds], "tickformat": "~s", "ticksuffix": "s"},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": order[::-1],
            "automargin": True,
            "fixedrange": True,
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
    }
    return checked([t for t in (*traces, _marks(line, loops)) if t["x"]], layout)


def _marks(line: Line, loops: Sequence[Instruction]) -> dict[str, Any]:
    """A mark where each of them begins: it has no width to draw."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "loop of unknown length",
        "x": [line.begins[i.id] for i in loops],
        "y": [_CORES for _ in loops],
        "marker": {"symbol": "diamond", "size": 12, "color": GREEN, "line": {"width": 1, "color": "#ffffff"}},
        "customdata": [text(_name(i)) for i in loops],
        "hovertemplate": "%{customdata}<br>how often it runs is not known, so it has no time<extra></extra>",
    }


def _left_out(line: Line, blocks: Sequence[Block], loops: Sequence[Instruction]) -> Iterator[str]:
    """What the chart does not show, in words."""
    if len(blocks) > _BLOCKS:
        yield f"the {_BLOCKS:,} longest of {len(blocks):,} blocks are drawn"
    if loops:
        yield f"{plural(len(loops), 'loop')} of unknown length: a diamond marks where it begins"
    guessed = [i for i in line.unknown if i.opcode == "conditional"]
    if guessed:
        yield f"of {plural(len(guessed), 'conditional')} the fastest branch is drawn"
    untimed = len(line.unknown) - len(guessed) - len(loops)
    if untimed:
        yield f"{plural(untimed, 'instruction')} without a known time: not drawn"


def _trace(kind: str, blocks: Iterable[Block]) -> dict[str, Any]:
    found = list(blocks)
    return {
        "type": "bar",
        "orientation": "h",
        "name": _NAMES[kind],
        "base": [b.begins for b in found],
        "x": [b.seconds for b in found],
        "y": [text(b.lane) for b in found],
        "marker": {"color": _COLOURS[kind], "line": {"width": 0.5, "color": _EDGES[kind]}},
        "customdata": [[text(b.name), duration(b.seconds), _exposed(b)] for b in found],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}%{customdata[2]}<extra></extra>",
    }


_NAMES = {
    "work": "runs on its own",
    "loop": "loop or call",
    "collective": "collective",
    "beside": "runs beside",
    "wait": "the step waits",
}


def _exposed(block: Block) -> str:
    return "" if block.exposed is None else f", {duration(block.exposed)} of it exposed"
