"""Tables that fit: rich's, where columns that can be spared go first and texts are cut, never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hloscope.report.terminal import Tail, cut, cut_front, indented

_GAP = 2
# What a column that can be cut keeps at least. The same for all: rich takes from the widest first, so that
# none gets narrower as long as they fit at this width.
_LEAST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. One that `shrinks` is cut, down to 20 cells, where there is no room; before that, columns
    are left out, those with the highest `optional` first, those with 0 never."""

    title: str
    right: bool = False
    shrinks: bool = False
    most: int = 60
    optional: int = 0
    cut_front: bool = False
    style: str = ""

    def cut(self, text: str) -> str:
        """A cell's text, printable and as wide as it may be."""
        return (cut_front if self.cut_front else cut)(text, self.most)


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, *, indent: int = 2
) -> RenderableType:
    """A header and rows, to be drawn at most `width` cells wide."""
    texts = [[c.cut(text) for c, text in zip(columns, row, strict=True)] for row in rows]
    shown = _shown(columns, texts, width - indent)
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for i in shown:
        made.add_column(
            Text(columns[i].title),
            justify="right" if columns[i].right else "left",
            style=columns[i].style,
            no_wrap=not columns[i].shrinks,
        )
    for row in texts:
        made.add_row(*(_cell(columns[i], row[i]) for i in shown))
    return indented(made, indent)


def _cell(column: Column, text: str) -> RenderableType:
    return Tail(text) if column.cut_front else Text(text, no_wrap=True, overflow="ellipsis")


def _shown(columns: Sequence[Column], texts: Sequence[Sequence[str]], room: int) -> list[int]:
    """Indices of the columns that stay: optional ones go until the others can be cut to fit."""
    shown = list(range(len(columns)))
    needed = [_needed(c, [row[i] for row in texts]) for i, c in enumerate(columns)]
    for i in sorted((i for i in shown if columns[i].optional), key=lambda i: -columns[i].optional):
        if sum(needed[j] + _GAP for j in shown) - _GAP <= room:
            break
        shown.remove(i)
    return shown


def _needed(column: Column, texts: Sequence[str]) -> int:
    natural = max(cell_len(text) for text in (column.title, *texts))
    return min(natural, _LEAST) if column.shrinks else natural
