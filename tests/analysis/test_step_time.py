"""The step on a clock: hand-made schedules with times worked out by hand, and sums on real modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hlo_builder import Body, HloBuilder, loop
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.costs import is_collective
from hloscope.analysis.step_time import StepTime
from hloscope.devices import chips
from hloscope.hlo import HloFile, Module, protos

V6E = chips()["v6e"]
HBM = 1_638_000_000_000
REGISTERS = 2 / 3 * 5 * 4096 * 1_750_000_000  # bytes a second through the registers
WIDE, SMALL = "f32[65536,1024]", "f32[1024,1024]"
NEAR = SMALL + "{1,0:S(1)}"
# Seconds of a copy of WIDE in HBM, and of fetching SMALL.
COPY, FETCH = 2 * 65536 * 1024 * 4 * (1 / HBM + 1 / REGISTERS), 1024 * 1024 * 4 / HBM


def estimate(hlo: HloBuilder, **known: Any) -> StepTime:
    known.setdefault("chip", V6E)
    return Analyses(schedule(hlo), **known).step_time


def schedule(hlo: HloBuilder) -> Module:
    """The module, scheduled in the order in which its instructions were written down."""
    for computation in hlo.proto.computations:
        ids = [i.id for i in computation.instructions]
        hlo.proto.schedule.sequences[computation.id].instruction_ids.extend(ids)
    return hlo.module()


def fetch_beside_copies(hlo: HloBuilder, fetches: int, copies: int) -> None:
    """Starts of fetches into VMEM, copies of WIDE, and then the dones in the order of the starts."""
    entry = hlo.entry()
    near, wide = entry.parameter(SMALL), entry.parameter(WIDE)
    starts = [entry.add("copy-start", f"({NEAR}, {SMALL}, u32[])", near) for _ in range(fetches)]
    for _ in range(copies):
        entry.add("copy", WIDE, wide)
    for start in starts:
        entry.add("copy-done", NEAR, start)


def test_work_that_is_done_in_time_is_hidden():
    hlo = HloBuilder()
    fetch_beside_copies(hlo, fetches=1, copies=1)
    time = estimate(hlo)
    assert time.seconds == pytest.approx(COPY)
    assert (time.exposed_seconds, time.hidden_seconds) == (0, pytest.approx(FETCH))
    assert not time.unknown


def test_work_that_nothing_runs_beside_is_exposed():
    hlo = HloBuilder()
    fetch_beside_copies(hlo, fetches=1, copies=0)
    time = estimate(hlo)
    assert (time.seconds, time.exposed_seconds) == (pytest.approx(FETCH), pytest.approx(FETCH))
    assert time.by_bound == {"exposed": pytest.approx(FETCH)}


def test_fetches_in_flight_take_turns():
    hlo = HloBuilder()
    fetch_beside_copies(hlo, fetches=50, copies=1)
    time = estimate(hlo)
    assert time.seconds == pytest.approx(max(COPY, 50 * FETCH))
    assert time.exposed_seconds == pytest.approx(max(0, 50 * FETCH - COPY))


def looped(trips: int | None) -> StepTime:
    hlo = HloBuilder()
    body = hlo.computation("body")
    state = body.parameter(f"(s32[], {WIDE})")
    at, wide = (body.add("get-tuple-element", s, state, tuple_index=i) for i, s in enumerate(("s32[]", WIDE)))
    copied = body.add("copy", WIDE, wide, op_name="jit(step)/jvp()/while/body/mul")
    body.add("tuple", f"(s32[], {WIDE})", at, copied)
    entry_loop = loop(hlo, body, f"(s32[], {WIDE})", trips=trips)
    entry = hlo.entry()
    entry.add("while", f"(s32[], {WIDE})", entry.parameter(f"(s32[], {WIDE})"), **entry_loop)
    return estimate(hlo)


def test_loop_counts_its_trips():
    time = looped(5)
    (found,) = time.loops
    assert (found.trips, found.trip_seconds) == (5, pytest.approx(COPY, rel=1e-3))
    assert time.seconds == pytest.approx(5 * COPY, rel=1e-3)
    assert time.by_phase["forward"] == pytest.approx(5 * COPY)


def test_layers_are_in_the_order_of_their_numbers():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter(WIDE)
    for name in (
        "layers_10/attention_2/mul",
        "layers_9/mul",
        "layers/11/mul",
        "layer_norm/mul",
        "layers_9/add",
    ):
        x = entry.add("copy", WIDE, x, op_name=f"jit(step)/jvp(Model)/{name}")
    time = estimate(hlo)
    assert time.by_layer == pytest.approx(
        {"layers/11": COPY, "layers_9": 2 * COPY, "layers_10": COPY, None: COPY}
    )
    assert list(time.by_layer) == ["layers/11", "layers_9", "layers_10", None]
    assert looped(5).by_layer == {}


def test_loop_of_unknown_trips_makes_the_step_a_lower_limit():
    time = looped(None)
    assert [i.opcode for i in time.unknown] == ["while"]
    assert (time.loops[0].trips, time.loops[0].step_seconds) == (None, None)
    assert time.families[0].seconds is None


def started(body: Body, called: Body, thread: str) -> None:
    x = body.parameter(WIDE)
    start = body.add(
        "async-start", f"(({WIDE}), {WIDE}, s32[])", x, calls=called, async_execution_thread=thread
    )
    body.add("async-done", WIDE, start)


def test_asynchronous_wrapper_counts_once():
    hlo = HloBuilder()
    called = hlo.computation("called", thread="sparsecore")
    called.add("copy", WIDE, called.parameter(WIDE))
    started(hlo.entry(), called, "sparsecore")
    time = estimate(hlo)
    moved = pytest.approx(2 * 65536 * 1024 * 4 / HBM)  # no core works on it
    assert (time.seconds, time.exposed_seconds) == (moved, moved)
    assert time.lower_seconds == moved  # nobody knows how fast a SparseCore is
    (family,) = time.families
    assert (family.seconds, family.step_seconds) == (moved, moved)


def test_collective_without_links_has_no_time():
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add(
        "all-reduce", WIDE, entry.parameter(WIDE), replica_groups=[protos.ReplicaGroup(replica_ids=[0, 1])]
    )
    time = estimate(hlo)
    assert [i.opcode for i in time.unknown] == ["all-reduce"]
    assert (time.seconds, time.collectives[0].seconds, time.collectives[0].step_seconds) == (0, None, None)


def test_unscheduled_module_has_no_step():
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("copy", WIDE, entry.parameter(WIDE))
    time = Analyses(hlo.module(), chip=V6E).step_time
    assert (time.seconds, time.families[0].step_seconds) == (None, None)
    assert time.families[0].seconds == pytest.approx(COPY)


def test_branch_that_nobody_knows_counts_as_the_fastest():
    hlo = HloBuilder()
    slow, fast = hlo.computation("slow"), hlo.computation("fast")
    slow.add("copy", WIDE, slow.parameter(WIDE))
    fast.parameter(WIDE)
    entry = hlo.entry()
    which, x = entry.parameter("s32[]"), entry.parameter(WIDE)
    entry.add("conditional", WIDE, which, x, x, calls=[slow, fast])
    time = estimate(hlo)
    assert (time.seconds, [i.opcode for i in time.unknown]) == (0, ["conditional"])


@given(st.integers(0, 60), st.integers(0, 3))
def test_step_is_work_and_waits(fetches: int, copies: int):
    hlo = HloBuilder()
    fetch_beside_copies(hlo, fetches, copies)
    time = estimate(hlo)
    assert time.seconds is not None
    assert time.exposed_seconds is not None
    assert time.hidden_seconds is not None
    assert time.seconds == pytest.approx(copies * COPY + time.exposed_seconds)
    assert time.seconds >= fetches * FETCH - 1e-12
    assert max(copies * COPY, fetches * FETCH) == pytest.approx(time.seconds)


MODULES = {"dense": "v6e", "qwen3_30b": "v6e", "deepseek": "tpu7x", "oom": "v5e"}


@pytest.mark.parametrize(("name", "chip"), MODULES.items())
def test_parts_of_real_steps_sum_to_the_step(name: str, chip: str, shared_dump: Callable[[str], HloFile]):
    file = shared_dump(name)
    time = Analyses(file.module, chip=chips()[chip]).step_time
    assert time.seconds
    for parts in (time.by_phase, time.by_bound):
        assert sum(parts.values()) == pytest.approx(time.seconds)
    added = sum(f.step_seconds or 0.0 for f in time.families)
    assert added == pytest.approx(time.seconds)
    untimed = [i for i in time.unknown if not is_collective(i) and i.opcode != "async-start"]
    assert not untimed  # of these steps only collectives have no time without a topology


def test_dense_step_does_the_model_flops(shared_dump: Callable[[str], HloFile]):
    """Qwen3 0.6B with two layers, 1024 tokens on each device: six operations for each weight and token, two more for
    the recomputed forward pass of the layers, and attention, counted from the published shapes."""
    file = shared_dump("dense")
    time = Analyses(file.module, chip=V6E).step_time
    tokens, hidden, mlp, heads, kv_heads, size, vocabulary = 1024, 1024, 3072, 16, 8, 128, 151_936
    layer = hidden * size * (heads + 2 * kv_heads) + heads * size * hidden + 3 * hidden * mlp
    attention = (
        2 * 2 * heads * tokens * tokens * size
    )  # without a mask; the kernel's 2 + 3.5 products backwards
    wanted = tokens * (2 * 8 * layer + 6 * hidden * vocabulary) + 2 * attention * 5.5
    flops = sum(f.flops or 0 for f in time.families)
    assert flops == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("name", ["dense", "deepseek"])
def test_unknown_chip_has_no_time_anywhere(name: str, shared_dump: Callable[[str], HloFile]):
    time = Analyses(shared_dump(name).module).step_time
    figures = (
        time.seconds,
        time.exposed_seconds,
        time.hidden_seconds,
        time.lower_seconds,
        time.upper_seconds,
    )
    assert set(figures) == {None}
    assert {f.seconds for f in (*time.families, *time.collectives)} == {None}
    assert {f.step_seconds for f in (*time.families, *time.collectives)} == {None}
