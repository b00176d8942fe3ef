"""The diff on the terminal: settings, figures, then each table with its heaviest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from rich.console import Group, RenderableType

from hloscope.report.budgets import spelled
from hloscope.report.diff import Diff, Figure
from hloscope.report.diff_match import Change, Row
from hloscope.report.tables import Column, table
from hloscope.report.terminal import cut, indented, words
from hloscope.report.text_findings import price
from hloscope.units import UNKNOWN, count, duration, plural, size

_SHOWN = 10
_NONE = "-"

Words = Callable[[Row], str]


def render(diff: Diff, *, width: int, everything: bool = False, regressions: Sequence[str] = ()) -> Group:
    """The diff, to be drawn `width` columns wide; `everything` cuts no table short."""
    sections = (
        _head(diff),
        _settings(diff, width),
        _figures(diff.figures, width),
        _table("Buffers at the peak", diff.buffers, buffer_words, width, everything),
        _table("Census", diff.census, family_words, width, everything),
        _table("Collectives", diff.collectives, collective_words, width, everything),
        _findings(diff.findings, everything),
        _not_compared(diff.not_compared),
        _worse(regressions),
    )
    blocks = [list(section) for section in sections]
    parts = [part for block in blocks if block for part in (words(), *block)]
    return Group(*parts[1:])


def _head(diff: Diff) -> Iterator[RenderableType]:
    yield words(("before  ", "dim"), cut(diff.before.source, 200))
    yield words(("after   ", "dim"), cut(diff.after.source, 200))
    if diff.empty:
        yield words("nothing differs")


def _settings(diff: Diff, width: int) -> Iterator[RenderableType]:
    if not diff.settings:
        return
    yield words(("Settings and versions", "bold"))
    columns = (Column(title=""), Column(title="before", shrinks=True), Column(title="after", shrinks=True))
    yield table(columns, [[d.name, setting(d.before), setting(d.after)] for d in diff.settings], width)


def setting(value: Any) -> str:
    """A setting's value; a dash where a side has none."""
    if isinstance(value, dict):  # the mesh
        axes = cast("dict[str, object]", value)
        return " × ".join(f"{axis} {number}" for axis, number in axes.items()) or _NONE
    return _NONE if value is None else str(value)


def _figures(figures: Sequence[Figure], width: int) -> Iterator[RenderableType]:
    if not figures:
        return
    yield words(("Figures", "bold"), ("  of one device", "dim"))
    columns = (
        Column(title=""),
        Column(title="before", right=True),
        Column(title="after", right=True),
        Column(title="change", right=True, style="bold"),
    )
    yield table(columns, [figure_row(f) for f in figures], width)


def figure_row(figure: Figure) -> list[str]:
    """Name, before, after, change."""
    change = UNKNOWN
    if figure.delta is not None:
        percent = 100 * figure.delta / figure.before if figure.before else None
        share = "" if percent is None else f" ({signed(percent, lambda v: f'{v:.1f} %')})"
        change = f"{signed(figure.delta, lambda v: spelled(figure.unit, v))}{share}"
    return [figure.name, figure.spelled(figure.before), figure.spelled(figure.after), change]


def signed(value: float | None, spell: Callable[[float], str]) -> str:
    """A difference with its sign; one that is too small for digits has none."""
    if value is None:
        return UNKNOWN
    spelled_out = spell(abs(value))
    if spelled_out.startswith("<"):
        return spelled_out
    return f"{'−' if value < 0 else '+'}{spelled_out}"


def _table(
    title: str, found: Sequence[Change], name: Words, width: int, everything: bool
) -> Iterator[RenderableType]:
    if not found:
        return
    yield words((title, "bold"), (f"  {counted(found)}", "dim"))
    columns = (
        Column(title=""),
        Column(title="what", shrinks=True, most=110),
        Column(title="count", right=True),
        Column(title="runs", right=True, optional=1),
        Column(title="bytes", right=True),
        Column(title="change", right=True, style="bold"),
    )
    shown = found if everything else found[:_SHOWN]
    yield table(columns, [change_row(change, name) for change in shown], width)
    if len(shown) < len(found):
        yield indented(words((f"{plural(len(found) - len(shown), 'more change')} with --all", "dim")))


def change_row(change: Change, name: Words) -> list[str]:
    """Status, what it is, count, runs, bytes, and the change: in bytes, or in time where bytes are the same."""
    return [
        change.status,
        both(change, name),
        both(change, lambda row: count(row["count"])),
        both(change, lambda row: count(row["executions"]) if "executions" in row else ""),
        both(change, lambda row: size(row["bytes"])),
        _changed_by(change),
    ]


def _changed_by(change: Change) -> str:
    moved = change.delta("bytes")
    if moved != 0 or change.status != "changed":
        return signed(moved, lambda v: size(int(v)))
    if "seconds" not in (change.after or {}):
        return ""
    slower = change.delta("seconds")
    return signed(slower, duration) if slower else ""


def both(change: Change, spell: Words) -> str:
    """The words for both sides, once if they are the same."""
    sides = dict.fromkeys(spell(row) for row in (change.before, change.after) if row is not None)
    return " → ".join(sides)


def counted(found: Sequence[Change]) -> str:
    """How many are new, gone and changed."""
    numbers = {status: sum(c.status == status for c in found) for status in ("new", "gone", "changed")}
    return ", ".join(f"{n:,} {status}" for status, n in numbers.items() if n)


def buffer_words(row: Row) -> str:
    """What a family of buffers is."""
    return f"{row['label']} {row['shape']} {' '.join(row['phases'])}"


def family_words(row: Row) -> str:
    """What a family of the census is."""
    return f"{row['family']} {row['phase']} {row['shape']}"


def collective_words(row: Row) -> str:
    """What a kind of collective is."""
    axes = "" if row["mesh_axes"] is None else f" over {' × '.join(row['mesh_axes'])}"
    return f"{row['opcode']} {row['phase']} {row['shape']}{axes}"


def _findings(found: Sequence[Change], everything: bool) -> Iterator[RenderableType]:
    if not found:
        return
    words_of = {"new": ("new", "red"), "gone": ("fixed", "green"), "changed": ("changed", "yellow")}
    yield words(("Findings", "bold"), (f"  {counted(found).replace('gone', 'fixed')}", "dim"))
    for change in found if everything else found[:_SHOWN]:
        row = change.after or change.before or {}
        text = f"  {row['code']} {cut(row['title'], 300)} · {finding_figures(change)}"
        yield indented(words(words_of[change.status], text))
        was = title_before(change)
        if was:
            yield indented(words((f"was: {cut(was, 300)}", "dim")), 4)


def finding_figures(change: Change) -> str:
    """Severity where it changed, sites and price, of both sides where they differ."""
    severity = both(change, lambda row: row["severity"])
    parts = (both(change, lambda row: plural(row["places"], "site")), both(change, price_words))
    return " · ".join((severity, *parts) if "→" in severity else parts)


def title_before(change: Change) -> str:
    """What a finding was called before, where that has changed."""
    if change.before is None or change.after is None or change.before["title"] == change.after["title"]:
        return ""
    return change.before["title"]


def price_words(row: Row) -> str:
    """What a finding costs, in words."""
    return price(row["saved_bytes"], row["saved_seconds"], row["held_bytes"], row["bytes"])


def _not_compared(codes: Sequence[str]) -> Iterator[RenderableType]:
    if codes:
        yield words((not_compared_words(codes), "yellow"))


def not_compared_words(codes: Sequence[str]) -> str:
    """Which rules' findings are left aside, and why."""
    return f"{', '.join(codes)} not compared: not run on one side, or without what the rule needs there"


def _worse(regressions: Sequence[str]) -> Iterator[RenderableType]:
    for regression in regressions:
        yield words(("worse", "bold red"), f"  {cut(regression, 300)}")
