"""What a notebook shows below a cell: the report's page or a part of it, in a frame of its own; small tables.

A frame is sandboxed: whatever stands in a dump, the notebook is out of its reach.
"""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING

from hloscope.report.escape import printable
from hloscope.report.html.page import EXTRA, render_html, render_neighbours

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.hlo import Module
    from hloscope.hlo.neighbourhood import Neighbourhood
    from hloscope.report.diff import Diff
    from hloscope.report.model import Report

# Pixels. What is higher scrolls.
_WHOLE, _CHARTS, _TABLE, _CHART = 900, 860, 520, 460
_LONGEST = 200
# What grew by no more is not called worse, as on the command line.
_TOLERANCE = 0.01
_COLUMNS = 120
_PRE = '<pre style="white-space:pre;line-height:1.2;font-family:monospace">{code}</pre>'


def whole(report: Report) -> str | None:
    """The whole report in a frame; None where what it is made with is not installed."""
    return part(report, "")


def part(report: Report, sections: str) -> str | None:
    """Sections of the report's page, by id (all if none are named), in a frame."""
    if not _is_installed():
        return None
    names = frozenset(sections.split())
    height = _WHOLE if not names else _CHARTS if "memory" in names else _TABLE
    return _framed(render_html(report, sections=names), report.target.module, height)


def compared(diff: Diff) -> str | None:
    """Before and after side by side, in a frame; None where what it is made with is not installed."""
    if not _is_installed():
        return None
    return _framed(diff.to_html(_TOLERANCE), "before and after", _CHARTS)


def _is_installed() -> bool:
    return all(find_spec(name) is not None for name in EXTRA)


def _framed(page: str, title: str, height: int) -> str:
    return (
        f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts" title="{escape(printable(title[:_LONGEST]))}" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def module_table(module: Module) -> str:
    """A module's name, and its instructions by opcode."""
    from rich.console import Group

    from hloscope.report.tables import Column, table
    from hloscope.report.terminal import words

    counts = sorted(module.opcode_counts.items(), key=lambda pair: (-pair[1], pair[0]))
    columns = (Column(title="opcode"), Column(title="instructions", right=True))
    rows = [[name, f"{number:,}"] for name, number in counts]
    return _drawn(Group(words((repr(module), "bold")), table(columns, rows, _COLUMNS)))


def neighbourhood_drawing(around: Neighbourhood) -> str:
    """The neighbourhood with the chart of the page, in a frame; as a tree where what it is made with is missing."""
    if not _is_installed():
        from hloscope.report.graph import tree

        return _drawn(tree(around, max(around.distance.values())))
    return _framed(render_neighbours(around), f"neighbours of {around.centre.name}", _CHART)


def _drawn(document: RenderableType) -> str:
    """What the terminal shows, as HTML: rich escapes the text."""
    from rich.console import Console

    console = Console(
        file=StringIO(), record=True, width=_COLUMNS, markup=False, emoji=False, highlight=False,
        force_jupyter=False, color_system="standard",
    )  # fmt: skip
    console.print(document)
    return console.export_html(inline_styles=True, code_format=_PRE)
