"""Computations that compute the same."""

from __future__ import annotations

import pytest

from hloscope.analysis import costs_work, families, fusion_use, rowwise
from hloscope.analysis.costs_work import work_in
from hloscope.analysis.families import family_of
from hloscope.analysis.fusion_use import body_use
from hloscope.analysis.rowwise import is_row_wise
from hloscope.hlo import Computation, Module, alike, read_hlo
from hloscope.hlo.text import parse_text

BODY = """{name} {{
  {a} = f32[8,128] parameter(0)
  {a}s = f32[8,128] slice({a}), slice={{[0:8], [0:128]}}
  {a}c = f32[] constant(1)
  {a}b = f32[8,128] broadcast({a}c), dimensions={{}}
  ROOT {a}r = f32[8,128] {opcode}({a}s, {a}b)
}}
"""


def bodies(first: str, second: str) -> tuple[Computation, Computation]:
    entry = """ENTRY e {
  p = f32[8,128] parameter(0)
  one = f32[8,128] fusion(p), kind=kLoop, calls=first
  ROOT two = f32[8,128] fusion(one), kind=kLoop, calls=second
}
"""
    module = Module(parse_text(f"HloModule m\n\n{first}\n{second}\n{entry}".encode(), "m"))
    one, two = (module.find(name) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    return one.called_computations[0], two.called_computations[0]


def body(name: str) -> str:
    return BODY.format(name=name, a=name[0], opcode="add")


def test_clones_are_alike() -> None:
    first, second = bodies(body("first"), body("second"))
    assert alike(first) is first
    assert alike(second) is first
    assert [i.opcode for i in second] == [i.opcode for i in first]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("add(", "multiply("),
        ("add(ss, sb)", "add(sb, ss)"),
        ("constant(1)", "constant(2)"),
        ("[0:128]", "[128:256]"),
        ("f32[8,128] slice", "f32[8,128]{0,1} slice"),
        ("parameter(0)", "parameter(1)"),
    ],
)
def test_what_computes_something_else_is_like_itself_only(before: str, after: str) -> None:
    text = body("second")
    assert before in text
    first, second = bodies(body("first"), text.replace(before, after))
    assert alike(first) is first
    assert alike(second) is second


def facts(module: Module, rows: int) -> list[tuple[object, ...]]:
    fusions = [i for i in module.instructions if i.opcode == "fusion"]
    return [(work_in(i), body_use(i), is_row_wise(i, rows), family_of(i)) for i in fusions]


def test_facts_of_clones_are_what_each_body_gives_by_itself(monkeypatch, dump_file) -> None:
    path = dump_file("deepseek")
    shared = read_hlo(path).module
    called = [i.called_computations[0] for i in shared.instructions if i.opcode == "fusion"]
    assert len({alike(body) for body in called}) < len(called) / 2
    for room in (costs_work, fusion_use, rowwise, families):
        monkeypatch.setattr(room, "alike", lambda body: body)
    alone = facts(read_hlo(path).module, 524288)
    monkeypatch.undo()
    assert facts(shared, 524288) == alone
