"""What the guides show of a command on a module of the tests is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hloscope.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```\n\$ hloscope (analyze tests/data/[^\n]*)\n(.*?)```", re.DOTALL)
# Its rule is not hloscope's.
FOREIGN = "--select ACME"
SHOWN = [
    pytest.param(command, text, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.rglob("*.md"))
    for number, (command, text) in enumerate(BLOCK.findall(page.read_text("utf-8")))
    if FOREIGN not in command
]


def test_there_are_some() -> None:
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("command", "text"), SHOWN)
def test_a_transcript_is_what_the_command_prints(
    command: str, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line and in order; `...` stands for lines that are left out."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(DOCS.parent)
    main(command.split())
    printed = iter(capsys.readouterr().out.splitlines())
    missing = [line for line in text.splitlines() if line.strip() not in ("...", "") and line not in printed]
    assert missing == []
