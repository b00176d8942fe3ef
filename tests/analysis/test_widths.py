"""Values that are mere conversions of narrower ones."""

from __future__ import annotations

import pytest

from hloscope.analysis.widths import widened_from
from hloscope.hlo import Module
from hloscope.hlo.text import parse_text

TEXT = """HloModule m

f {
  other = bf16[8] parameter(0)
  narrow = bf16[8] parameter(1)
  kept = bf16[8] copy(narrow)
  wide = f32[8] convert(kept)
  ROOT pair = (f32[8], bf16[8]) tuple(wide, other)
}

ENTRY e {
  a = bf16[8] parameter(0)
  b = bf16[8] parameter(1)
  both = (f32[8], bf16[8]) fusion(a, b), kind=kLoop, calls=f
  ROOT first = f32[8] get-tuple-element(both), index=0
}
"""


def module(*, operands: int = 2, parts: int = 2) -> Module:
    """The module, with fewer operands of its fusion or fewer parts of the fusion's result, as damage has it."""
    proto = parse_text(TEXT.encode(), "m")
    for computation in proto.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "fusion":
                del instruction.operand_ids[operands:]
            if instruction.opcode == "tuple":
                del instruction.operand_ids[parts:]
    return Module(proto)


def test_a_part_of_a_fusion_that_converts() -> None:
    root = module().entry.root
    found = widened_from(root)
    assert found is not None
    assert found.name == "kept"


def through(module: Module) -> str | None:
    """What the second part of the fusion is followed to, as a conversion of the fusion's own."""
    (fusion,) = (i for i in module.entry if i.opcode == "fusion")
    found = widened_from(fusion, 1)
    return None if found is None else found.name


@pytest.mark.parametrize("lost", [{"operands": 0}, {"parts": 1}, {"parts": 0}])
def test_a_damaged_fusion_is_followed_nowhere(lost: dict[str, int]) -> None:
    assert through(module(**lost)) is None
