"""The order of instructions and of computations: that of the schedule, and that of the calls."""

from __future__ import annotations

import pytest

from hloscope.hlo import Module, protos
from tests.hlo.text_cases import read

TEXT = """HloModule m, is_scheduled=true

late {
  x = f32[] parameter(0)
  ROOT n = f32[] negate(x)
}

early {
  y = f32[] parameter(0)
  ROOT a = f32[] abs(y)
}

ENTRY e {
  p = f32[] parameter(0)
  first = f32[] call(p), to_apply=early
  second = f32[] call(p), to_apply=late
  ROOT sum = f32[] add(second, first)
}
"""


def rescheduled(names: str) -> Module:
    """The module with its entry's schedule set to instructions by name; what is not there has the number 99."""
    module = read(TEXT)
    proto = protos.HloModuleProto.FromString(module.proto.SerializeToString())
    ids = {i.name: i.id for i in module.entry}
    sequence = proto.schedule.sequences[module.entry.id].instruction_ids
    del sequence[:]
    sequence.extend(ids.get(name, 99) for name in names.split())
    return Module(proto)


def test_instructions_stand_as_they_run() -> None:
    module = rescheduled("p second first sum")
    assert [i.name for i in module.entry] == ["p", "second", "first", "sum"]
    assert [i.name for i in module.entry.schedule] == ["p", "second", "first", "sum"]
    assert [u.name for u in module.entry.parameters[0].users] == ["second", "first"]


@pytest.mark.parametrize(
    "names", ["p second sum", "p sum second first", "p p first second sum", "p x first sum"]
)
def test_a_schedule_that_cannot_be_leaves_the_order_of_the_message(names: str) -> None:
    assert [i.name for i in rescheduled(names).entry] == ["p", "first", "second", "sum"]


def test_computations_stand_as_they_are_called() -> None:
    module = read(TEXT)
    assert [c.name for c in module.computations] == ["late", "early", "e"]
    assert [c.name for c in module.control_computations] == ["early", "late", "e"]
    assert [c.name for c in rescheduled("p second first sum").control_computations] == ["late", "early", "e"]
