"""The report on a wrapped command: its modules on a line each, then one of them in full, or all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from hloscope.report.captured import Captured
from hloscope.report.tables import Column, table
from hloscope.report.terminal import cut, indented, words
from hloscope.report.text import render
from hloscope.units import UNKNOWN, count, plural, size

_SHOWN = 15
_COLUMNS = (
    Column(title="module", shrinks=True, most=50),
    Column(title="for"),
    Column(title="compiles", right=True, optional=2),
    Column(title="instructions", right=True, optional=1),
    Column(title="HBM total", right=True, style="bold"),
    Column(title="peak", right=True),
    Column(title="findings", shrinks=True),
)


def render_captured(found: Sequence[Captured], *, width: int, everything: bool) -> Group:
    """The table of modules, and the first in full; with `everything` all of both."""
    parts: list[RenderableType] = list(_modules(found, width, everything))
    for captured in found if everything else found[:1]:
        if captured.report is not None:
            parts += [words(), render(captured.report, width=width, everything=everything)]
    return Group(*parts)


def _modules(found: Sequence[Captured], width: int, everything: bool) -> Iterator[RenderableType]:
    compiles = sum(c.compiles for c in found)
    told = plural(len(found), "module") + (f" in {count(compiles)} compiles" if compiles > len(found) else "")
    yield words((f"The command compiled {told}", "bold"))
    shown = found if everything else found[:_SHOWN]
    yield table(_COLUMNS, [_row(c) for c in shown], width)
    if len(found) > len(shown):
        yield indented(words((f"{plural(len(found) - len(shown), 'smaller module')} with --all", "dim")))


def _row(captured: Captured) -> list[str]:
    report = captured.report
    if report is None:
        unread = cut(captured.error or "", 200)
        return [captured.label, UNKNOWN, count(captured.compiles), "", "", "", unread]
    target, memory = report.target, report.memory
    return [
        captured.label,
        target.chip or target.platform or UNKNOWN,
        count(captured.compiles),
        count(target.instructions),
        size(memory.total_bytes),
        size(memory.peak_bytes),
        "the compile failed" if target.status == "failed" else _codes(report.findings) or "none",
    ]


def _codes(findings: Sequence[object]) -> str:
    return ", ".join(dict.fromkeys(str(getattr(f, "code", "")) for f in findings))
