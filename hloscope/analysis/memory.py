"""Memory of a compiled step: the compiler's own figures, the live bytes over the schedule, the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hloscope.analysis.memory_live import Ints, Replay, downsample, replay
from hloscope.analysis.memory_order import Order, flat_order
from hloscope.analysis.memory_peak import Buffer as Buffer
from hloscope.analysis.memory_peak import BufferFamily as BufferFamily
from hloscope.analysis.memory_peak import buffers_at_peak, fold, largest_temporaries
from hloscope.hlo import MEMORY_SPACES, Instruction, Module, Shape
from hloscope.hlo.buffers import Allocation, Buffers, read_buffers

if TYPE_CHECKING:
    from hloscope.capture.artifact import MemoryStats
    from hloscope.hlo import protos

HBM = 0
# So many of the largest buffers tell what is alive where, to within a few percent of the peak.
_LARGEST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePoint:
    """Live HBM bytes from a schedule position on, arguments included."""

    position: int
    instruction: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Figures of the default memory space (HBM) of one device, in bytes; None is unknown.

    `temp_bytes` is the compiler's `temp_size_in_bytes`, which no dump holds. `arena_bytes` is the one
    preallocated temporary allocation. `total_bytes` is what the program needs in all. `peak_bytes` is the
    largest sum of live buffers, arguments included; `fragmentation_bytes` is the part of the arena that even
    at the peak no live buffer fills: arena - (peak - what lives outside of the arena).

    Positions count the flattened schedule, `schedule_length` of them. `curve_positions` and `curve_bytes` are
    every point at which the live bytes change (int64, parallel), `live` at most about 2,000 of them, among
    them the peak and every maximum that reaches above its stretch of the schedule.

    `compiler_peak_bytes` is the compiler's `peak_memory_in_bytes`. It equals `peak_bytes`, except that where
    nearly everything fits into VMEM the compiler counts VMEM's peak in place of the arena's.
    `disagreements` are lines on figures of the compiler that its own buffer assignment does not bear out.
    """

    argument_bytes: int | None
    output_bytes: int | None
    alias_bytes: int | None
    temp_bytes: int | None
    arena_bytes: int | None
    total_bytes: int | None
    generated_code_bytes: int | None
    peak_bytes: int | None
    peak_instruction: Instruction | None
    peak_position: int | None
    fragmentation_bytes: int | None
    hbm_limit_bytes: int | None
    spaces: dict[str, int]  # other memory spaces: "vmem", "smem", "sflag", ...: bytes allocated
    live: tuple[LivePoint, ...]
    buffers_at_peak: tuple[Buffer, ...]  # largest first
    families_at_peak: tuple[BufferFamily, ...]  # largest first
    largest_temporaries: tuple[Buffer, ...] = ()  # of the whole schedule, at the peak or not, largest first
    schedule_length: int | None = None
    curve_positions: Ints | None = field(default=None, compare=False, repr=False)
    curve_bytes: Ints | None = field(default=None, compare=False, repr=False)
    compiler_peak_bytes: int | None = None
    disagreements: tuple[str, ...] = ()


_UNKNOWN = Memory(
    argument_bytes=None,
    output_bytes=None,
    alias_bytes=None,
    temp_bytes=None,
    arena_bytes=None,
    total_bytes=None,
    generated_code_bytes=None,
    peak_bytes=None,
    peak_instruction=None,
    peak_position=None,
    fragmentation_bytes=None,
    hbm_limit_bytes=None,
    spaces={},
    live=(),
    buffers_at_peak=(),
    families_at_peak=(),
)


def analyze_memory(
    module: Module,
    buffer_assignment: protos.BufferAssignment | None,
    *,
    stats: MemoryStats | None = None,
    hbm_limit_bytes: int | None = None,
    parameter_names: Sequence[str] = (),
) -> Memory:
    """The memory of a module, from its buffer assignment and, if the compile is ours, the compiler's figures.

    `parameter_names` name the entry's parameters in order, e.g. `params['w']`. Without a buffer assignment
    only what the entry's shapes tell exactly is known. Raises UserError for a damaged buffer assignment.
    """
    if buffer_assignment is None or not buffer_assignment.buffer_allocations:
        memory = _of_shapes(module)
    else:
        memory = _of_buffers(module, read_buffers(buffer_assignment), parameter_names)
    memory = replace(memory, hbm_limit_bytes=hbm_limit_bytes)
    return _with_stats(memory, stats) if stats is not None else memory


def _of_buffers(module: Module, buffers: Buffers, names: Sequence[str]) -> Memory:
    """Everything that a buffer assignment tells. The sums are those that the compiler prints: found by
    comparing with `memory_analysis()` and the memory usage report, equal to the byte."""
    hbm = [a for a in buffers.allocations if a.space == HBM]
    order = flat_order(module)
    trace = buffers.trace_of(HBM)
    heap = replay(trace, buffers, order) if trace is not None else None
    # What the trace moves about in; all the rest lives throughout. Thread-local stacks count for neither.
    arena = {buffers.home[v] for v in trace.values} if trace is not None else set[int]()
    outside = [
        a
        for number, a in enumerate(buffers.allocations)
        if a.space == HBM and a.kind != "thread-local" and number not in arena
    ]
    memory = replace(
        _UNKNOWN,
        argument_bytes=_sum(a for a in hbm if a.kind == "argument"),
        output_bytes=_sum(a for a in hbm if a.live_out),
        alias_bytes=_sum(a for a in hbm if a.live_out and a.kind == "argument"),
        arena_bytes=_sum(a for a in hbm if a.kind == "temp"),
        total_bytes=_sum(hbm),
        spaces=_spaces(buffers.allocations),
        schedule_length=len(order.instructions),
    )
    if heap is None and memory.arena_bytes:
        return memory  # a heap without its trace: its peak is not known
    return _with_peak(memory, module, buffers, order, heap, outside, names)


def _with_peak(
    memory: Memory,
    module: Module,
    buffers: Buffers,
    order: Order,
    heap: Replay | None,
    outside: list[Allocation],
    names: Sequence[str],
) -> Memory:
    standing = _sum(outside)
    alive = buffers_at_peak(module, buffers, order, heap, outside, names)
    memory = replace(memory, buffers_at_peak=alive, families_at_peak=fold(alive), peak_bytes=standing)
    if heap is None:
        return replace(memory, fragmentation_bytes=0)
    position = int(heap.event_positions[heap.peak_event])
    instruction = order.instructions[position] if position < len(order.instructions) else None
    positions, live = _whole_curve(heap, standing)
    return replace(
        memory,
        largest_temporaries=largest_temporaries(buffers, order, heap, _LARGEST),
        peak_bytes=standing + heap.peak_bytes,
        peak_instruction=instruction,
        peak_position=position,
        fragmentation_bytes=(memory.arena_bytes or 0) - heap.peak_bytes,
        live=_points(positions, live, order),
        curve_positions=positions,
        curve_bytes=live,
    )


def _whole_curve(heap: Replay, standing: int) -> tuple[Ints, Ints]:
    """The curve of all live bytes, from position 0 on."""
    positions, live = heap.positions, heap.bytes
    if positions[0] > 0:
        positions, live = np.insert(positions, 0, 0), np.insert(live, 0, 0)
    return positions, live + standing


def _points(positions: Ints, live: Ints, order: Order) -> tuple[LivePoint, ...]:
    positions, live = downsample(positions, live)
    return tuple(
        LivePoint(position=p, instruction=_name_at(p, order), bytes=b)
        for p, b in zip(positions.tolist(), live.tolist(), strict=True)
    )


def _name_at(position: int, order: Order) -> str:
    """The instruction's name; empty after the last."""
    return order.instructions[position].name if position < len(order.instructions) else ""


def _sum(allocations: Iterable[Allocation]) -> int:
    return sum(a.bytes for a in allocations)


def _spaces(allocations: Iterable[Allocation]) -> dict[str, int]:
    found: dict[str, int] = {}
    for allocation in allocations:
        if allocation.space != HBM:
            name = MEMORY_SPACES.get(allocation.space, f"space {allocation.space}")
            found[name] = found.get(name, 0) + allocation.bytes
    return found


def _of_shapes(module: Module) -> Memory:
    """What the entry's shapes tell of a module without a buffer assignment: only of a compiled one, whose
    layouts are final, and not the output's table of addresses, whose size differs from chip to chip."""
    if not module.is_scheduled:
        return _UNKNOWN
    leaves = {
        (number, index): shape
        for number, parameter in enumerate(module.entry.parameters)
        for index, shape in parameter.shape.leaves()
    }
    aliased = {
        (entry.parameter_number, tuple(entry.parameter_shape_index))
        for entry in module.proto.input_output_alias.entries
    }
    result = module.entry.root.shape
    return replace(
        _UNKNOWN,
        argument_bytes=_exact(leaves.values()),
        output_bytes=None if result.is_tuple else _exact([result]),
        alias_bytes=_exact(leaves[a] for a in aliased) if aliased <= leaves.keys() else None,
    )


def _exact(shapes: Iterable[Shape]) -> int | None:
    """Padded HBM bytes of arrays; None where one has no layout, so that its padding is not known."""
    arrays = [s for s in shapes if s.is_array and s.memory_space == HBM]
    return sum(s.padded_bytes for s in arrays) if all(s.layout for s in arrays) else None


def _with_stats(memory: Memory, stats: MemoryStats) -> Memory:
    """The compiler's figures in place of the derived ones, what disagrees noted.

    The peak stays the derived one where there is one, so that it is the sum of the buffers beside it. The compiler's
    is not taken where it is above the total: it counts VMEM then, where nearly everything fits into that.
    """
    told = {
        "argument_bytes": stats.argument_bytes,
        "output_bytes": stats.output_bytes,
        "alias_bytes": stats.alias_bytes,
        "total_bytes": stats.total_bytes,
    }
    derived = {name: getattr(memory, name) for name in (*told, "peak_bytes")}
    told_all = {**told, "peak_bytes": stats.peak_bytes}
    known = {name: value for name, value in told.items() if value is not None}
    total, peak = stats.total_bytes, memory.peak_bytes
    counts_vmem = stats.peak_bytes is not None and total is not None and stats.peak_bytes > total
    notes = [
        f"{name}: the compiler says {told_all[name]}, its buffer assignment {derived[name]}"
        for name in told_all
        if None not in (told_all[name], derived[name]) and told_all[name] != derived[name]
    ]
    if peak is None and counts_vmem:
        notes.append(f"peak_bytes: the compiler says {stats.peak_bytes}, VMEM in it, of {total} in all")
    elif peak is None:
        peak = stats.peak_bytes
    return replace(
        memory,
        **known,
        temp_bytes=stats.temp_bytes,
        generated_code_bytes=stats.generated_code_bytes,
        peak_bytes=peak,
        compiler_peak_bytes=stats.peak_bytes,
        disagreements=tuple(notes),
    )
