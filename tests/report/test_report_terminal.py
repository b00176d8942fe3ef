from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Group

from hloscope.report.escape import fit_encoding, inert, printable
from hloscope.report.figures import bar, curve
from hloscope.report.tables import Column, table
from hloscope.report.terminal import Tail, beside, cut, cut_front, draw, indented, joined, words

HOSTILE = "a\x1b[31m\x07\r\n\t\u202eb\u2066\u200bc\x9b2J"


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(document: object, width: int = 80) -> list[str]:
    return draw(document, width).splitlines()  # pyright: ignore[reportArgumentType]


def test_control_and_formatting_characters_are_spelled_out() -> None:
    assert printable(HOSTILE) == r"a\x1b[31m\x07\r\n\t\u202eb\u2066\u200bc\x9b2J"
    assert printable("bf16[2,3] gelü 形") == "bf16[2,3] gelü 形"
    assert printable("\ud800") == r"\ud800"


def test_a_log_gives_no_orders_to_its_runner() -> None:
    assert inert("a\n  ::error::b\n\x1b[1m::c\n d::e ##[f]") == (
        "a\n  \\x3a:error::b\n\x1b[1m\\x3a:c\n d::e #\\x23[f]"
    )
    assert inert("a::b\nc") == "a::b\nc"


@pytest.mark.parametrize(
    "text", ["x" * 10_000, "形" * 500, "e\u0301" * 9_000, "\u0301" * 10_000, "❤\ufe0f" * 99, HOSTILE * 300]
)
@pytest.mark.parametrize("width", [10, 33])
def test_a_cut_text_fits_and_shows_that_it_was_cut(text: str, width: int) -> None:
    short = cut(text, width)
    assert cell_len(short) <= width
    assert short.endswith("…")
    assert len(short) <= 4 * width + 1
    assert short.isprintable()


def test_what_fits_is_not_cut() -> None:
    assert cut("fusion.1", 8) == "fusion.1"
    assert cut("形形", 4) == "形形"
    assert cut("形形形", 5) == "形形…"
    assert cut_front("layers/moe.py:1469", 12) == "…moe.py:1469"
    assert cut_front("moe.py", 12) == "moe.py"
    assert cut_front("\x1b" * 99, 12).isprintable()


def test_a_tail_takes_the_room_there_is() -> None:
    assert drawn(Tail("layers/moe.py:1469"), 12) == ["…moe.py:1469"]
    assert drawn(Tail("moe.py:1"), 12) == ["moe.py:1"]


def test_no_markup_emoji_or_escape_is_taken_from_a_text() -> None:
    text = "[red]x[/red] :smile: \x1b[1m"
    assert draw(words(text), 80) == "[red]x[/red] :smile: \\x1b[1m\n"
    assert drawn(words((HOSTILE, "bold"))) == [printable(HOSTILE)]


def test_long_texts_are_wrapped_within_their_indent() -> None:
    rows = drawn(indented(words("word " * 50 + "x" * 200), 4), 40)
    assert all(len(row) <= 40 and row.startswith("    ") for row in rows)
    assert "".join("".join(rows).split()) == "word" * 50 + "x" * 200


def test_texts_stand_beside_each_other_where_there_is_room() -> None:
    assert drawn(beside(words("a" * 30), words("b" * 8)), 40) == ["a" * 30 + "  " + "b" * 8]
    assert drawn(beside(words("a" * 30), words("b" * 9)), 40) == ["a" * 30, "b" * 9]
    assert drawn(beside(words("a"), words("")), 40) == ["a"]


def test_parts_that_are_not_there_are_left_out() -> None:
    assert joined(["a", None, "b", ""]) == "a · b"


def test_a_document_is_plain_but_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    document = Group(words("a ", ("b", "red"), "  "), words())
    assert draw(document, 80) == draw(document, 80, StringIO()) == "a b\n\n"
    assert draw(document, 80, Terminal()) == "a \x1b[31mb\x1b[0m\n\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert draw(document, 80, Terminal()) == "a b\n\n"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert draw(document, 80, Terminal()) == "a b\n\n"
    # A dumb terminal is as wide as any other.
    assert drawn(words("x" * 100), 120) == ["x" * 100]


def test_colour_forced_on_others_does_not_reach_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert draw(words(("b", "red")), 80) == "b\n"


def test_an_encoding_without_blocks_gets_ascii_of_the_same_width() -> None:
    text = "total █▓░ ▁▂▃▄▅▆▇█ 4 × 3 → é…"
    assert fit_encoding(text, "utf-8") == text
    ascii_text = fit_encoding(text, "ascii")
    assert ascii_text == r"total @=. .:-=+*#@ 4 x 3 > \xe9~"
    assert fit_encoding(text, "latin-1").encode("latin-1")


def test_a_table_leaves_columns_out_then_cuts() -> None:
    columns = (
        Column(title="name", shrinks=True),
        Column(title="bytes", right=True),
        Column(title="made by", shrinks=True, optional=2, cut_front=True),
        Column(title="kind", optional=1),
    )
    rows = [
        ["a long name of a family", "1 B", "models/layers/moe.py:1469", "fusion"],
        ["short", "10.0 GiB", "", "copy"],
    ]
    assert drawn(table(columns, rows, 80, indent=0)) == [
        "name                        bytes  made by                    kind",
        "a long name of a family       1 B  models/layers/moe.py:1469  fusion",
        "short                    10.0 GiB                             copy",
    ]
    assert drawn(table(columns, rows, 62, indent=0), 62) == [
        "name                      bytes  made by                kind",
        "a long name of a fam…       1 B  …s/layers/moe.py:1469  fusion",
        "short                  10.0 GiB                         copy",
    ]
    assert drawn(table(columns, rows, 38, indent=0), 38) == [
        "name                     bytes  kind",
        "a long name of a fa…       1 B  fusion",
        "short                 10.0 GiB  copy",
    ]
    assert drawn(table(columns, rows, 32, indent=2), 32) == [
        "  name                     bytes",
        "  a long name of a fa…       1 B",
        "  short                 10.0 GiB",
    ]


@pytest.mark.parametrize("width", range(80, 161, 7))
def test_a_table_never_loses_a_figure(width: int) -> None:
    columns = (
        Column(title="a", shrinks=True),
        Column(title="shape", shrinks=True),
        Column(title="bytes", right=True),
        Column(title="made by", shrinks=True, optional=1, cut_front=True),
        Column(title="n", right=True),
    )
    row = ["family " * 9, "bf16[163840,4096], " * 3, "1023.9 GiB", "p/" * 30 + "moe.py:7", "53,434"]
    (_, text) = drawn(table(columns, [row], width), width)
    assert cell_len(text) <= width
    assert "  1023.9 GiB  " in text
    assert text.endswith("  53,434")


def test_a_table_spells_out_what_is_hostile() -> None:
    (_, row) = drawn(table((Column(title="name", shrinks=True),), [[HOSTILE * 50]], 60, indent=0), 60)
    assert row.isprintable()
    assert len(row) <= 60


def test_a_bar_shows_parts_and_the_rest() -> None:
    assert bar((25, 25), 100, 8) == "██▓▓░░░░"
    assert bar((1, 99), 1000, 10) == "█▓░░░░░░░░"
    assert bar((300, 100), 100, 8) == "██████▓▓"
    assert bar((0, 0), 0, 4) == "░░░░"


def test_a_curve_keeps_every_maximum() -> None:
    assert curve([], 10) == ""
    assert curve([(0, 0), (1, 8), (2, 4)], 3) == "▁█▅"
    # One short spike among many low points is seen, and a value holds until it changes.
    spike = [(0, 1), (500, 8), (501, 1), (999, 1)]
    assert curve(spike, 10) == "▂▂▂▂▂█▂▂▂▂"
    assert curve([(0, 8), (99, 0)], 10) == "██████████"
    assert len(curve([(0, 1), (4, 1)], 60)) == 5
