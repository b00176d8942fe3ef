"""Small modules cut out of real ones, to be mutated: one real computation each, with all that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hloscope.analysis.memory_order import flat_order
from hloscope.hlo import Computation, Module, protos, read_hlo
from hloscope.hlo.text_print import print_text

DATA = Path(__file__).parents[1] / "data"
SOURCES = ("oom_toy_moe", "qwen3_0p6b_dense", "qwen3_30b")
# So small that one input takes milliseconds, so large that loops, fusions and collectives are in it.
SMALLEST, LARGEST = 12, 90
PER_SOURCE = 25
# What the compiler writes beside a module that it dumps.
RECORDS = {
    "target_arguments.txt": b"""replica_count: 1
tpu_topology_args {
  version: TPU_VERSION_VIPERFISH
  variant: "lite"
  chips_per_host_bounds {
    x: 2
    y: 2
    z: 1
  }
  host_bounds {
    x: 1
    y: 2
    z: 1
  }
}
""",
    "tpu_comp_env.txt": b"""# xla_tpu_scoped_vmem_limit_kib in the current tpu_comp_env has a non-default value.
xla_tpu_scoped_vmem_limit_kib: 65536
xla_tpu_enable_sparse_core: true
""",
    "oom_intermediate_module.txt": b"HloModule m",
    "after_codegen.txt": b"done",
}


@cache
def seeds() -> tuple[protos.HloProto, ...]:
    """The modules, each with a buffer assignment and a schedule."""
    return tuple(seed for name in SOURCES for seed in _from_module(name))


@cache
def texts() -> tuple[bytes, ...]:
    """The same modules as text."""
    return tuple("".join(print_text(Module(seed.hlo_module))).encode() for seed in seeds())


def _from_module(name: str) -> Iterator[protos.HloProto]:
    module = read_hlo(DATA / f"{name}.hlo.pb.gz").module
    # Those that call most first: a loop before a fusion before a reducer.
    found = [(closure, c) for c in module.computations if (closure := _closure(c)) is not None]
    found.sort(key=lambda pair: -len(pair[0]))
    yield from (_cut(module, closure, c) for closure, c in found[:PER_SOURCE])


def _closure(computation: Computation) -> list[Computation] | None:
    """A computation and all that it calls, callees first; None where that is too much or too little."""
    found: dict[int, Computation] = {}
    waiting = [computation]
    while waiting:
        current = waiting.pop()
        found[current.id] = current
        waiting += [c for i in current.instructions for c in i.called_computations if c.id not in found]
        if sum(len(c.proto.instructions) for c in found.values()) > LARGEST:
            return None
    if sum(len(c.proto.instructions) for c in found.values()) < SMALLEST:
        return None
    return [c for c in computation.module.computations if c.id in found]


def _cut(module: Module, closure: list[Computation], entry: Computation) -> protos.HloProto:
    proto = protos.HloModuleProto(name="cut", entry_computation_id=entry.id)
    proto.entry_computation_name = entry.name
    proto.computations.extend(c.proto for c in closure)
    proto.stack_frame_index.file_locations.extend(module.proto.stack_frame_index.file_locations[:20])
    proto.stack_frame_index.stack_frames.extend(module.proto.stack_frame_index.stack_frames[:20])
    proto.stack_frame_index.file_names.extend(module.proto.stack_frame_index.file_names[:20])
    proto.stack_frame_index.function_names.extend(module.proto.stack_frame_index.function_names[:20])
    for computation in closure:
        if not computation.is_fusion:
            ids = proto.schedule.sequences[computation.id].instruction_ids
            ids.extend(i.id for i in computation.schedule)
    proto.device_assignment.replica_count, proto.device_assignment.computation_count = 1, 8
    whole = protos.HloProto(hlo_module=proto)
    _assign(Module(whole.hlo_module), whole.buffer_assignment)
    return whole


def _assign(module: Module, assignment: protos.BufferAssignment) -> None:
    """A buffer for every value, in one arena; the third one back is freed, the fourth shared with."""
    arena = assignment.buffer_allocations.add(index=1)
    trace = assignment.heap_simulator_traces.add()
    for number, instruction in enumerate(flat_order(module).instructions, 1):
        size = min(instruction.shape.padded_bytes, 2**30)
        buffer = assignment.logical_buffers.add(id=number, size=size)
        buffer.defined_at.instruction_id = instruction.id
        arena.assigned.add(logical_buffer_id=number, offset=arena.size, size=size)
        arena.size += size
        shares = number % 4 == 0
        trace.events.add(
            kind=2 if shares else 0, buffer_id=number, share_with_canonical_id=number - 1 if shares else 0
        )
        if number > 3 and number % 4 == 3:
            trace.events.add(kind=1, buffer_id=number - 2)
