"""The flattened order, by hand and against the compiler's own live range dumps."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hlo_builder import HloBuilder, loop

from hloscope.analysis.memory_live import replay
from hloscope.analysis.memory_order import LastUses, flat_order
from hloscope.hlo import HloFile, Module, read_hlo
from hloscope.hlo.buffers import FREE, read_buffers

Load = Callable[[str], HloFile]

# The live range dumps are not kept in the repository; they are read where a checkout has them beside it.
FOLDERS = {
    "dense": "qwen3_0p6b_L2_v6e8_dense",
    "qwen3_30b": "qwen3_30b_L4_v6e16_ep4_ring_ragged_gmmv2",
    "deepseek": "deepseek3_671b_tpu7x512_fsdp128_ep4_ring_ragged",
    "qwen35_397b": "qwen35_397b_tpu7x256_fsdp32_ep8_ring_ragged",
}
BESIDE = Path(__file__).parents[3] / "shared" / "data" / "maxtext"
STEP = re.compile(r"    (\d+):(\S+)")
RANGE = re.compile(r"    (\S+)\{([\d,]*)\}:(\d+)-(\d+)")


def live_range_dump(name: str) -> tuple[HloFile, list[str]]:
    """A module and the lines of its live range dump: of one folder, so that they are of one compile."""
    folder = BESIDE / FOLDERS[name]
    if not folder.exists():
        pytest.skip(f"the live ranges of the {name} module are not part of the repository")
    with gzip.open(folder / "after_optimizations-live-range.txt.gz", "rt") as file:
        return read_hlo(folder / "after_optimizations.hlo.pb.gz"), file.read().splitlines()


@pytest.mark.parametrize("name", FOLDERS)
def test_the_order_is_the_compilers(name: str) -> None:
    file, lines = live_range_dump(name)
    theirs = [m[2] for m in map(STEP.fullmatch, lines) if m]
    assert [i.name for i in flat_order(file.module).instructions] == theirs


@pytest.mark.parametrize("name", FOLDERS)
def test_events_take_effect_where_the_compiler_has_their_values_begin_and_end(name: str) -> None:
    file, lines = live_range_dump(name)
    assert file.buffer_assignment is not None
    order, buffers = flat_order(file.module), read_buffers(file.buffer_assignment)
    end = next(n for n, line in enumerate(lines) if "Live ranges at" in line)
    ranges = {(m[1], m[2]): (int(m[3]), int(m[4])) for m in map(RANGE.match, lines[:end]) if m}
    trace = buffers.trace_of(0)
    assert trace is not None
    at = replay(trace, buffers, order).event_positions
    off: list[int] = []
    for event, (kind, value) in enumerate(zip(trace.kinds, trace.values, strict=True)):
        number, index = buffers.values[value]
        instruction = order.find(number)
        assert instruction is not None
        first, last = ranges[instruction.name, ",".join(map(str, index))]
        if kind == FREE:
            off.append(abs(int(at[event]) - 1 - last))
        else:
            assert at[event] == first, instruction.name
    # The trace leaves open where exactly between two allocations a value is freed.
    assert np.mean(np.array(off) == 0) > 0.85
    assert np.mean(np.array(off) <= 5) > 0.98


def test_a_condition_stands_before_the_body_and_both_before_their_loop() -> None:
    hlo = HloBuilder()
    body = hlo.computation("body")
    body.add("negate", "f32[8]", body.parameter("f32[8]", name="state"), name="next")
    around = loop(hlo, body, "f32[8]", trips=3)
    entry = hlo.entry()
    x = entry.parameter("f32[8]", name="x")
    entry.add("while", "f32[8]", x, name="loop", **around)
    order = flat_order(hlo.module())
    opcodes = ["parameter", "parameter", "custom-call", "parameter", "negate", "while"]
    assert [i.opcode for i in order.instructions] == opcodes
    assert [i.name for i in order.instructions[3:]] == ["state", "next", "loop"]
    # The loop's first state dies where the condition takes it over.
    assert LastUses(order).of(order.instructions[0], ()) == 0


def deferred() -> Module:
    """An asynchronous negate whose start has no operands: the update binds them."""
    hlo = HloBuilder()
    inner = hlo.computation("inner", thread="sparsecore")
    inner.add("negate", "f32[8]", inner.parameter("f32[8]", name="in"), name="work")
    entry = hlo.entry()
    start = entry.add("async-start", "((), (), s32[1])", calls=inner, name="start")
    x = entry.add("constant", "f32[8]", name="x")
    update = entry.add("async-update", "((f32[8]), f32[8])", start, x, name="update")
    done = entry.add("async-done", "f32[8]", update, name="done")
    entry.add("abs", "f32[8]", done, name="abs")
    return hlo.module()


def test_asynchronous_work_stands_where_its_operands_are_bound() -> None:
    order = flat_order(deferred())
    assert [i.name for i in order.instructions] == ["start", "x", "in", "work", "update", "done", "abs"]


def test_an_operand_lives_until_the_done_and_the_result_until_its_reader() -> None:
    module = deferred()
    uses = LastUses(flat_order(module))
    x, update = module.find("x"), module.find("update")
    assert x is not None
    assert update is not None
    assert uses.of(x, ()) == 5
    assert uses.of(update, (1,)) == 6


def test_calls_may_nest_deeper_than_python_does() -> None:
    hlo = HloBuilder()
    inner = hlo.computation("c0")
    inner.add("constant", "f32[]")
    for depth in range(1, 3000):
        outer = hlo.computation(f"c{depth}")
        outer.add("call", "f32[]", calls=inner)
        inner = outer
    hlo.entry().add("call", "f32[]", calls=inner, name="top")
    order = flat_order(hlo.module())
    assert len(order.instructions) == 3001
    assert order.instructions[-1].name == "top"
