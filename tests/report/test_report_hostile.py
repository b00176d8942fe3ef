"""Names in a dump are whatever somebody wrote there: they must not reach the terminal as commands."""

from __future__ import annotations

import json

import pytest
from hostile import EVIL

from hloscope.report.model import Report


@pytest.mark.parametrize("everything", [False, True])
def test_no_control_character_reaches_the_terminal(hostile: Report, everything: bool) -> None:
    text = hostile.to_text(width=120, everything=everything)
    assert all(row.isprintable() for row in text.splitlines())
    assert text.replace("\n", "").isprintable()
    assert r"\x1b]0;owned\x07" in text


def test_markup_is_shown_as_it_stands(hostile: Report) -> None:
    assert "[red]markup[/red]" in hostile.to_text(width=160)


def test_long_names_are_cut(hostile: Report) -> None:
    text = hostile.to_text(width=120)
    assert max(map(len, text.splitlines())) <= 120
    assert len(text) < 20_000
    assert "…" in text


def test_json_keeps_names_whole_and_is_ascii(hostile: Report) -> None:
    text = json.dumps(hostile.to_dict())
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["target"]["module"] == EVIL + "x" * 10_000
