"""Names in a dump are whatever somebody wrote there: they must not reach the terminal as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.hlo import HloFile, protos
from hloscope.report.build import load
from hloscope.report.model import Report

EVIL = "\x1b]0;owned\x07\x1b[2J[red]markup[/red]\u202egnp\u2066\r\n\x9b31m\u200f"


@pytest.fixture
def hostile(shared_dump: Callable[[str], HloFile], tmp_path: Path) -> Report:
    """The small module with a name of 10,000 characters on everything that a name can be put on."""
    file = shared_dump("oom")
    proto = protos.HloProto.FromString(file_bytes(file))
    module = proto.hlo_module
    module.name = EVIL + "x" * 10_000
    for computation in module.computations:
        computation.name = EVIL + computation.name
        for instruction in computation.instructions:
            instruction.name = f"{EVIL}{instruction.name}" + "y" * 10_000
            instruction.metadata.op_name = instruction.metadata.op_name + "/" + EVIL + "z" * 10_000
    names = module.stack_frame_index.file_names
    for i, name in enumerate(list(names)):
        names[i] = f"/{EVIL}/" + "w" * 10_000 + name + EVIL
    path = tmp_path / "evil.hlo.pb"
    path.write_bytes(proto.SerializeToString())
    return load(path)


def file_bytes(file: HloFile) -> bytes:
    proto = protos.HloProto(hlo_module=file.module.proto)
    if file.buffer_assignment is not None:
        proto.buffer_assignment.CopyFrom(file.buffer_assignment)
    return proto.SerializeToString()


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
