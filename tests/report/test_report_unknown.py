"""Words of HLO that hloscope does not know are told once, in whatever form they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope import load
from hloscope.hlo import HloFile, read_hlo
from hloscope.hlo.opcodes import OPCODES

TEXT = """\
HloModule m, is_scheduled=true
fused {
  p = f32[1024,1024] parameter(0)
  ROOT q = f32[1024,1024] negate(p)
}
ENTRY e {
  x = f32[1024,1024] parameter(0)
  y = f32[1024,1024] frobnicate(x)
  z = f32[1024,1024] fusion(y), kind=kStrange, calls=fused
  ROOT w = f32[1024,1024] frobnicate(z)
}
"""


def test_unknown_words_are_told_once(tmp_path: Path) -> None:
    path = tmp_path / "module.hlo"
    path.write_text(TEXT)
    report = load(path)
    assert report.target.warnings == (
        "unknown opcode frobnicate (2 instructions, %y for one): what it computes is not known, its time is that of "
        "the bytes that it reads and writes",
        "unknown kind of fusion kStrange (1 instruction, %z): it is taken like any other",
    )
    assert {f.family for f in report.census.families} == {"frobnicate", "elementwise"}
    proto = tmp_path / "module.pb"
    proto.write_bytes(read_hlo(path).module.proto.SerializeToString())
    assert load(proto).target.warnings == report.target.warnings


@pytest.mark.parametrize(
    "name", ["dense", "qwen3_30b", "deepseek", "oom", "qwen35_397b", "moe_jax010", "moe_jax012"]
)
def test_the_words_of_real_modules_are_known(name: str, shared_dump: Callable[[str], HloFile]) -> None:
    assert shared_dump(name).module.opcode_counts.keys() <= OPCODES


def test_a_vocabulary_of_its_own_is_not_told_in_full(tmp_path: Path) -> None:
    lines = [f"  y{n} = f32[8] op-{n}(x)" for n in range(9)]
    path = tmp_path / "module.hlo"
    path.write_text("\n".join(["HloModule m", "ENTRY e {", "  x = f32[8] parameter(0)", *lines, "}"]))
    (note,) = load(path).target.warnings
    assert note.startswith(
        "unknown opcode op-0, op-1, op-2, op-3, op-4 and 4 more (9 instructions, %y0 for one)"
    )
