"""rich, set up for reports. Nothing here knows a report.

Names come from dumps that nobody vouches for. They become `rich.text.Text`, never markup, with what is not
printed spelled out and what is too long cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Literal, TextIO

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from hloscope.report.escape import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

# Marks that take no cell of their own can be stacked without end; so many per cell are enough for any script.
_MARKS_PER_CELL = 4
_HEIGHT = 25
NARROWEST, WIDEST = 80, 160
# rich's own has a black background, on any terminal.
_THEME = Theme({"markdown.code": "cyan"})


def fit_width(width: int, *, narrowest: int = NARROWEST) -> int:
    """The width to draw in on a terminal of `width` columns: 160 at most, which is as far as an eye follows.

    A report takes 80 at least and leaves the rest to the terminal; narrower, it would have to leave out figures.
    """
    return max(narrowest, min(width, WIDEST))


def draw(document: RenderableType, width: int, stream: TextIO | None = None) -> str:
    """The document as text of at most `width` cells a line, ending in a newline.

    In colour if `stream` is given and is a terminal that wants it, as rich decides (NO_COLOR, TERM).
    """
    drawn = StringIO()
    console = Console(
        file=drawn,
        color_system=None if stream is None else _colours(stream),
        width=width,
        height=_HEIGHT,  # with both given, rich asks no terminal
        theme=_THEME,
        markup=False,
        emoji=False,
        highlight=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(document)
    # rich fills lines up with spaces.
    return "\n".join(row.rstrip() for row in drawn.getvalue().split("\n"))


def _colours(stream: TextIO) -> Literal["standard", "256", "truecolor"] | None:
    """The colours that a stream shows."""
    found = Console(file=stream, legacy_windows=False).color_system
    return found if found in ("standard", "256", "truecolor") else None


def cut(text: str, width: int) -> str:
    """The printable text in at most `width` cells, ending in an ellipsis if something was left out."""
    most = _MARKS_PER_CELL * width
    # What cannot fit need not be looked at: names of a megabyte exist.
    short = printable(text[: most + 1])
    if len(short) > most:
        short = short[:most] + "…"
    if cell_len(short) <= width:
        return short
    kept = Text(short)
    kept.truncate(width, overflow="ellipsis")
    return kept.plain


def cut_front(text: str, width: int) -> str:
    """Like `cut`, but leaves out the beginning: of a path, the end tells more."""
    return cut(printable(text[-_MARKS_PER_CELL * width - 1 :])[::-1], width)[::-1]


@dataclass(frozen=True, slots=True)
class Tail:
    """A printable text in one line of which the end tells most: cut at the front, to the room there is."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.text)
        return Measurement(min(1, width), width).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(cut_front(self.text, options.max_width), no_wrap=True, overflow="crop")


def words(*pieces: str | tuple[str, str] | Text) -> Text:
    """A text of plain pieces and of pieces with a style, what is not printed spelled out."""
    safe = (
        p if isinstance(p, Text) else printable(p) if isinstance(p, str) else (printable(p[0]), p[1])
        for p in pieces
    )
    return Text.assemble(*safe)


def indented(document: RenderableType, by: int = 2) -> Padding:
    """The document, moved to the right."""
    return Padding(document, (0, 0, 0, by), expand=False)


def beside(left: Text, right: Text) -> Columns:
    """Two texts, side by side where there is room, else one below the other."""
    return Columns([text for text in (left, right) if text], padding=(0, 2))


def joined(parts: Iterable[str | None], separator: str = " · ") -> str:
    """The parts that there are, in one line."""
    return separator.join(p for p in parts if p)
