"""Computations that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.analysis import costs as analysis_costs
from hloscope.analysis import costs_work, families, fusion_use, rowwise, traffic
from hloscope.analysis.costs import Cost, Costs
from hloscope.analysis.costs_work import work_in
from hloscope.analysis.families import family_of
from hloscope.analysis.fusion_use import body_use
from hloscope.analysis.rowwise import is_row_wise
from hloscope.devices import chips
from hloscope.hlo import Computation, Module, alike, alike_work, read_hlo
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


def itself(part: object) -> object:
    return part


def facts(module: Module, rows: int) -> list[tuple[object, ...]]:
    fusions = [i for i in module.instructions if i.opcode == "fusion"]
    return [(work_in(i), body_use(i), is_row_wise(i, rows), family_of(i)) for i in fusions]


def test_facts_of_clones_are_what_each_body_gives_by_itself(
    monkeypatch: pytest.MonkeyPatch, dump_file: Callable[[str], Path]
) -> None:
    path = dump_file("deepseek")
    shared = read_hlo(path).module
    called = [i.called_computations[0] for i in shared.instructions if i.opcode == "fusion"]
    assert len({alike(body) for body in called}) < len(called) / 2
    for room in (costs_work, fusion_use, rowwise, families):
        monkeypatch.setattr(room, "alike", itself)
    alone = facts(read_hlo(path).module, 524288)
    monkeypatch.undo()
    assert facts(shared, 524288) == alone


WORK = """HloModule m

first {
  a = f32[8,128] parameter(0)
  ROOT r = f32[8,128] negate(a)
}

second {
  b = f32[8,128] parameter(0)
  ROOT s = f32[8,128] negate(b)
}

pair {
  c = f32[8,128] parameter(0)
  d = f32[8,128] parameter(1)
  ROOT t = f32[8,128] add(c, d)
}

twin {
  e = f32[8,128] parameter(0)
  g = f32[8,128] parameter(1)
  ROOT u = f32[8,128] add(e, g)
}

ENTRY m {
  p = f32[8,128] parameter(0)
  q = f32[8,128] parameter(1)
  near = f32[8,128]{1,0:S(1)} copy(p)
  one = f32[8,128] fusion(p), kind=kLoop, calls=first
  two = f32[8,128] fusion(q), kind=kLoop, calls=second
  three = f32[8,128] fusion(near), kind=kLoop, calls=second
  apart = f32[8,128] fusion(p, q), kind=kLoop, calls=pair
  same = f32[8,128] fusion(p, p), kind=kLoop, calls=twin
  sum = f32[8,128] add(p, q)
  total = f32[8,128] add(q, p)
  gathered = f32[16,128] all-gather(p), dimensions={0}
  again = f32[16,128] all-gather(q), dimensions={0}
  ROOT all = () tuple()
}
"""


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("one", "two", "one"),
        ("one", "three", "three"),  # it reads another memory
        ("apart", "same", "same"),  # it reads one value twice, which is read once
        ("sum", "total", "sum"),
        ("gathered", "again", "again"),  # attributes are not compared
    ],
)
def test_work_is_alike_where_it_does_the_same_with_the_same_shapes(
    first: str, second: str, expected: str
) -> None:
    module = Module(parse_text(WORK.encode(), "m"))
    one, two = module.find(first), module.find(second)
    assert one is not None
    assert two is not None
    assert alike_work(one) is one
    assert alike_work(two) is module.find(expected)


def costs(path: Path) -> list[Cost]:
    module = read_hlo(path).module
    known = Costs(chips()["tpu7x"], {}, None)
    return [known.of(i) for c in module.control_computations for i in c.instructions]


def test_costs_of_alike_work_are_what_each_gives_by_itself(
    monkeypatch: pytest.MonkeyPatch, dump_file: Callable[[str], Path]
) -> None:
    path = dump_file("deepseek")
    shared = costs(path)
    assert len(set(map(id, shared))) < len(shared) / 3
    for room in (traffic, analysis_costs, families):
        monkeypatch.setattr(room, "alike_work", itself)
    assert costs(path) == shared
