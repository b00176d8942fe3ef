"""A damaged buffer assignment ends in one clear line, or in what is left of it; never in a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hloscope.analysis.memory import analyze_memory
from hloscope.errors import UserError
from hloscope.hlo import HloFile, Module, protos

Load = Callable[[str], HloFile]


def hbm_trace(proto: protos.BufferAssignment) -> protos.HeapSimulatorTrace:
    color = {v.id: v.color for v in proto.logical_buffers}
    return next(t for t in proto.heap_simulator_traces if color[t.events[0].buffer_id] == 0)


def negative_size(proto: protos.BufferAssignment) -> None:
    proto.buffer_allocations[0].size = -1


def offset_beyond(proto: protos.BufferAssignment) -> None:
    arena = max(proto.buffer_allocations, key=lambda a: a.size)
    arena.assigned[0].offset = arena.size


def negative_offset(proto: protos.BufferAssignment) -> None:
    proto.buffer_allocations[0].assigned[0].offset = -8


def unknown_value(proto: protos.BufferAssignment) -> None:
    proto.buffer_allocations[0].assigned[0].logical_buffer_id = 10**9


def two_of_one_id(proto: protos.BufferAssignment) -> None:
    proto.logical_buffers[1].id = proto.logical_buffers[0].id


def unknown_in_trace(proto: protos.BufferAssignment) -> None:
    hbm_trace(proto).events[0].buffer_id = 10**9


def freed_twice(proto: protos.BufferAssignment) -> None:
    trace = hbm_trace(proto)
    trace.events.append(trace.events[-1])


def allocated_twice(proto: protos.BufferAssignment) -> None:
    trace = hbm_trace(proto)
    trace.events.insert(0, trace.events[0])


def shared_with_nothing(proto: protos.BufferAssignment) -> None:
    trace = hbm_trace(proto)
    next(e for e in trace.events if e.kind == 2).share_with_canonical_id = 10**9


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (negative_size, "size that no device has"),
        (offset_beyond, "lies outside of allocation"),
        (negative_offset, "lies outside of allocation"),
        (unknown_value, "unknown logical buffer 1000000000"),
        (two_of_one_id, "two logical buffers have one id"),
        (unknown_in_trace, "a logical buffer that lies nowhere"),
        (freed_twice, "frees a buffer that is not alive"),
        (allocated_twice, "allocates a buffer twice"),
        (shared_with_nothing, "shares with a buffer that never was"),
    ],
)
def test_damage_is_told_in_one_line(
    damage: Callable[[protos.BufferAssignment], None], message: str, shared_dump: Load
) -> None:
    file = shared_dump("oom")
    proto = protos.BufferAssignment()
    proto.CopyFrom(file.buffer_assignment)
    damage(proto)
    with pytest.raises(UserError, match=message) as caught:
        analyze_memory(file.module, proto)
    assert "\n" not in str(caught.value)


def test_values_of_instructions_that_the_module_lacks_still_count(shared_dump: Load) -> None:
    file = shared_dump("oom")
    whole = analyze_memory(file.module, file.buffer_assignment)
    proto = protos.BufferAssignment()
    proto.CopyFrom(file.buffer_assignment)
    for value in proto.logical_buffers:
        value.defined_at.instruction_id += 10**6
    memory = analyze_memory(file.module, proto)
    assert memory.peak_bytes == whole.peak_bytes == sum(b.bytes for b in memory.buffers_at_peak)
    assert {b.label for b in memory.buffers_at_peak if b.kind == "temp"} == {"temp"}


def test_a_schedule_of_unknown_instructions_is_damage(shared_dump: Load) -> None:
    file = shared_dump("oom")
    proto = protos.HloModuleProto()
    proto.CopyFrom(file.module.proto)
    proto.schedule.sequences[proto.entry_computation_id].instruction_ids[3] = 5
    with pytest.raises(UserError, match="names instructions it lacks"):
        analyze_memory(Module(proto), file.buffer_assignment)


def test_random_damage_never_ends_in_a_traceback(shared_dump: Load) -> None:
    file = shared_dump("oom")
    assert file.buffer_assignment is not None
    whole = file.buffer_assignment.SerializeToString()
    rng = random.Random(20)
    refused = 0
    for _ in range(150):
        proto = protos.BufferAssignment.FromString(whole)
        for _ in range(3):
            damage_somewhere(proto, rng)
        try:
            memory = analyze_memory(file.module, proto)
        except UserError:
            refused += 1
        else:
            assert (memory.peak_bytes or 0) == sum(b.bytes for b in memory.buffers_at_peak)
    assert 0 < refused < 150


def damage_somewhere(proto: protos.BufferAssignment, rng: random.Random) -> None:
    number = rng.choice([-1, 0, 1, 7, 2**40, -(2**63), 2**63 - 1])
    value = rng.choice(proto.logical_buffers)
    allocation = rng.choice(proto.buffer_allocations)
    event = rng.choice(rng.choice(proto.heap_simulator_traces).events)
    kind = rng.randrange(8)
    if kind == 0:
        value.defined_at.instruction_id = number
    elif kind == 1:
        value.defined_at.shape_index.append(number)
    elif kind == 2:
        value.size = number
    elif kind == 3:
        allocation.parameter_number = number
        allocation.is_entry_computation_parameter = True
    elif kind == 4:
        allocation.color = number
    elif kind == 5:
        event.buffer_id = rng.choice(proto.logical_buffers).id
    elif kind == 6:
        event.kind = rng.choice([0, 1, 2, 9])
    else:
        del allocation.assigned[: rng.randrange(2)]
