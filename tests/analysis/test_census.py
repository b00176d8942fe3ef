from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hlo_builder import HloBuilder, loop

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.census import Census, Family
from hloscope.hlo import HloFile, Module

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = "bf16[1024,512]"
BIG = 1024 * 512 * 2
FORWARD, BACKWARD = "jit(step)/jvp()/", "jit(step)/transpose(jvp())/"


def only(module: Module) -> Family:
    (family,) = Analyses(module).census.families
    return family


def test_a_nested_fusion_counts_as_fusion_but_is_no_line_of_its_own():
    hlo = HloBuilder()
    inner = hlo.computation("inner", fusion=True)
    inner.add("copy", ROWS, inner.parameter(ROWS))
    outer = hlo.computation("outer", fusion=True)
    outer.add(
        "negate", ROWS, outer.add("fusion", ROWS, outer.parameter(ROWS), calls=inner, fusion_kind="kLoop")
    )
    entry = hlo.entry()
    entry.add(
        "fusion", ROWS, entry.parameter(ROWS), calls=outer, fusion_kind="kLoop", op_name=FORWARD + "neg"
    )
    census = Analyses(hlo.module()).census
    assert (census.fusion_count, census.top_level_fusion_count, census.instruction_count) == (2, 1, 7)
    (line,) = census.families
    assert (line.family, line.kind, line.phase, line.shape) == ("neg", "fusion kLoop", "forward", ROWS)
    assert (line.count, line.executions, line.bytes, line.loop) == (1, 1, 2 * BIG, None)


def test_lines_fold_compiler_copies_and_layouts_but_not_places():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter(ROWS)
    for name, shape, scope in (
        ("gmm.1", ROWS, FORWARD),
        ("gmm.2.clone.1", ROWS + "{0,1}", FORWARD),
        ("gmm.3.remat2", ROWS, FORWARD),
        ("gmm.4", ROWS, BACKWARD),
        ("gmm.5", "bf16[1024,256]", FORWARD),
    ):
        entry.add(
            "custom-call", shape, x, name=name, custom_call_target="tpu_custom_call", op_name=scope + "gmm"
        )
    lines = [(f.family, f.phase, f.shape, f.count) for f in Analyses(hlo.module()).census.families]
    assert lines == [
        ("gmm", "forward", ROWS, 3),
        ("gmm", "backward", ROWS, 1),
        ("gmm", "forward", "bf16[1024,256]", 1),
    ]


def layer_loop(trips: int | None) -> HloBuilder:
    """Two copies of an inner loop, one for each layer, in an outer loop of five trips."""
    hlo = HloBuilder()
    inners = []
    for layer in range(2):
        inner = hlo.computation(f"inner{layer}")
        inner.add("negate", ROWS, inner.parameter(ROWS))
        inners.append(loop(hlo, inner, ROWS, trips=trips))
    outer = hlo.computation("outer")
    value = outer.parameter(ROWS)
    for fields in inners:
        value = outer.add("while", ROWS, value, **fields)
    fields = loop(hlo, outer, ROWS, trips=5)
    entry = hlo.entry()
    entry.add("while", ROWS, entry.parameter(ROWS), **fields)
    return hlo


def test_executions_include_the_trips_of_all_loops_around():
    line = next(f for f in Analyses(layer_loop(3).module()).census.families if f.family == "neg")
    assert (line.count, line.executions, line.loop) == (2, 30, "5 x 3")
    assert line.bytes == 30 * 2 * BIG


def test_unknown_trips_leave_executions_and_bytes_unknown():
    line = next(f for f in Analyses(layer_loop(None).module()).census.families if f.family == "neg")
    assert (line.count, line.executions, line.bytes, line.loop) == (2, None, None, "5 x ?")


def test_asynchronous_work_counts_once_with_its_thread():
    hlo = HloBuilder()
    called = hlo.computation("async", thread="sparsecore")
    call = {"name": "gather.7", "custom_call_target": "tpu_custom_call"}
    called.add("custom-call", ROWS, called.parameter(ROWS), op_name=FORWARD + "gather", **call)
    entry = hlo.entry()
    buffers = f"(({ROWS}), {ROWS}, u32[])"
    start = entry.add("async-start", buffers, entry.parameter(ROWS), calls=called)
    update = entry.add("async-update", buffers, start, calls=called)
    entry.add("async-done", ROWS, update, calls=called)
    line = only(hlo.module())
    assert (line.family, line.thread, line.count, line.executions) == ("gather", "sparsecore", 1, 1)
    assert line.bytes == 2 * BIG


@pytest.mark.parametrize("made_up", ["", "negate.340", "ragged-dot-none"])
def test_a_name_that_the_compiler_made_up_tells_no_place(made_up: str):
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("negate", ROWS, entry.parameter(ROWS), op_name=made_up)
    assert only(hlo.module()).phase == "unknown"
    hlo = HloBuilder()
    entry = hlo.entry()
    named = entry.add("abs", ROWS, entry.parameter(ROWS), op_name=BACKWARD + "abs")
    entry.add("negate", ROWS, named, op_name=made_up)
    assert {f.family: f.phase for f in Analyses(hlo.module()).census.families} == {
        "abs": "backward",
        "neg": "backward",
    }


def test_copies_tell_where_they_go():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter(ROWS)
    near, host = ROWS + "{1,0:S(1)}", ROWS + "{1,0:S(5)}"
    fetched = entry.add("copy-start", f"({near}, {ROWS}, u32[])", x)
    fetched = entry.add("copy-done", near, fetched)
    entry.add("copy", ROWS, fetched)
    entry.add("copy", ROWS + "{0,1}", x)
    away = entry.add("copy-done", host, entry.add("copy-start", f"({host}, {ROWS}, u32[])", x))
    entry.add("copy", ROWS, away)
    families = sorted(f.family for f in Analyses(hlo.module()).census.families)
    assert families == ["copy", "copy from host", "copy from vmem", "copy to host", "copy to vmem"]


def test_parts_of_a_result_are_folded_and_small_ones_follow():
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    x = body.parameter(ROWS)
    parts = [body.add("negate", s, x) for s in ("f32[1024]", ROWS, ROWS)]
    shape = f"(f32[1024], {ROWS}, {ROWS})"
    body.add("tuple", shape, *parts)
    entry = hlo.entry()
    entry.add("fusion", shape, entry.parameter(ROWS), calls=body, fusion_kind="kLoop")
    assert only(hlo.module()).shape == f"2 x {ROWS}, f32[1024]"


def lines(census: Census, *, share: float = 1e-3) -> str:
    """The census as text: what moves at least `share` of all known bytes, and the counts behind it."""
    total = sum(f.bytes or 0 for f in census.families)
    text = [
        f"{f.family} | {f.kind} | {f.phase} | {f.shape} | {f.thread or '-'} | loop {f.loop or '-'} "
        f"| {f.count} x, {f.executions} runs, {f.bytes} bytes"
        for f in census.families
        if (f.bytes or 0) >= share * total
    ]
    counts = f"{census.fusion_count} fusions, {census.top_level_fusion_count} on their own"
    rest = f"{len(census.families)} families, {census.instruction_count} instructions"
    return "\n".join([*text, f"{counts}; {rest}", ""])


@pytest.mark.parametrize("name", ["dense", "qwen3_30b", "oom", "deepseek", "qwen35_397b"])
def test_real_modules_read_as_expected(name: str, shared_dump: Callable[[str], HloFile]):
    census = Analyses(shared_dump(name).module).census
    assert lines(census) == (GOLDEN / f"census_{name}.txt").read_text()


def test_the_397b_step_shows_its_full_buffer_families(shared_dump: Callable[[str], HloFile]):
    census = Analyses(shared_dump("qwen35_397b").module).census
    found = {
        (f.family, f.phase, f.shape): (f.count, f.executions)
        for f in census.families
        if "[163840," in f.shape and f.kind == "fusion kLoop"
    }
    assert found == {
        ("activation", "forward", "bf16[163840,1024]"): (4, 60),
        ("activation", "recompute", "bf16[163840,1024]"): (4, 60),
        ("activation", "backward", "2 x bf16[163840,1024]"): (4, 60),
        ("unsort", "backward", "bf16[163840,4096], f32[163840]"): (4, 60),
    }
    assert census.fusion_count == 3487
    assert census.instruction_count == 53_434


@pytest.mark.parametrize("name", ["dense", "qwen3_30b", "oom", "deepseek"])
def test_every_piece_of_work_is_in_one_line(name: str, shared_dump: Callable[[str], HloFile]):
    module = shared_dump(name).module
    census = Analyses(module).census
    counted = [i for f in census.families for i in f.instructions]
    assert len(counted) == len(set(counted)) == sum(f.count for f in census.families)
    fusions = sum(i.opcode == "fusion" for c in module.control_computations for i in c.instructions)
    assert census.top_level_fusion_count == fusions
    assert all(f.bytes is not None and f.executions is not None for f in census.families)
