"""Facts that are worked out once for each module, computation or instruction."""

from __future__ import annotations

from hloscope.hlo import Computation, Instruction, Module, once_for_each, once_per_module
from hloscope.hlo.text import parse_text

TEXT = "HloModule m\n\nENTRY e {\n  p = f32[8] parameter(0)\n  ROOT n = f32[8] negate(p)\n}\n"


def test_a_fact_is_worked_out_once_for_each() -> None:
    asked: list[Instruction | Computation | Module] = []

    @once_for_each
    def name(part: Instruction) -> str:
        asked.append(part)
        return part.name

    @once_per_module
    def title(module: Module) -> str | None:
        asked.append(module)
        return None

    one, other = (Module(parse_text(TEXT.encode(), "m")) for _ in range(2))
    assert [name(i) for module in (one, other, one) for i in module.entry] == ["p", "n"] * 3
    assert [title(module) for module in (one, other, one)] == [None] * 3
    assert len(asked) == 6
