"""The compiler's buffer assignment, read and checked: allocations, values and heap simulator traces.

A value (XLA's logical buffer) lies in one allocation at one offset. A trace lists in which order values of
one memory space are allocated, freed, or put in the place of another. Its `buffer_allocation_index` is not
used: it is the number from before the compiler sorted its allocations, and often names another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from hloscope.errors import UserError

if TYPE_CHECKING:
    from hloscope.hlo import protos

ALLOC, FREE, SHARE_WITH = 0, 1, 2

# More than any device has: a larger allocation is damage, and sums of such would overflow.
_LARGEST = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One contiguous piece of one memory space. `values` are the ids of the values that lie in it.

    `parameter` is the number and shape index of the entry parameter that it holds, or None.
    """

    bytes: int
    space: int  # the layout's memory space number
    kind: str  # "argument", "output", "constant", "thread-local", "temp"
    live_out: bool  # whether the program's result (or part of it) lies in it
    parameter: tuple[int, tuple[int, ...]] | None
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What the heap simulator did, as parallel lists, for values of one memory space.

    `kinds` are ALLOC, FREE or SHARE_WITH, `shared` is the value shared with (0 for the other kinds).
    """

    space: int
    kinds: tuple[int, ...]
    values: tuple[int, ...]
    shared: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """A checked buffer assignment. `home` and `bytes` tell a value's allocation (by place in
    `allocations`) and its padded bytes there; `values` tell the id of the instruction that defines it, and the
    shape index in its result."""

    allocations: tuple[Allocation, ...]
    values: Mapping[int, tuple[int, tuple[int, ...]]]
    home: Mapping[int, int]
    bytes: Mapping[int, int]
    traces: tuple[Trace, ...]

    def trace_of(self, space: int) -> Trace | None:
        """The trace of a memory space, the longest one where there are several; None without any."""
        found = [t for t in self.traces if t.space == space]
        return max(found, key=lambda t: len(t.kinds), default=None)


class _Places(Mapping[int, tuple[int, tuple[int, ...]]]):
    """Where values are defined, decoded when it is first asked for: of many values nobody does."""

    def __init__(self, values: dict[int, protos.LogicalBuffer]) -> None:
        self._values = values
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}

    def __getitem__(self, value: int) -> tuple[int, tuple[int, ...]]:
        known = self._known.get(value)
        if known is None:
            at = self._values[value].defined_at
            known = self._known[value] = at.instruction_id, tuple(at.shape_index[:])
        return known

    def __contains__(self, value: object) -> bool:
        return value in self._values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_buffers(proto: protos.BufferAssignment) -> Buffers:
    """Read a buffer assignment. Raises UserError where sizes or references in it cannot be."""
    values = {v.id: v for v in proto.logical_buffers}
    if len(values) != len(proto.logical_buffers):
        _refuse("two logical buffers have one id")
    home: dict[int, int] = {}
    sizes: dict[int, int] = {}
    allocations: list[Allocation] = []
    for number, allocation in enumerate(proto.buffer_allocations):
        # A field of a message costs each time that it is looked at: all that is wanted of them at once.
        parts = [(a.logical_buffer_id, a.offset, a.size) for a in allocation.assigned]
        allocations.append(_allocation(allocation, tuple([value for value, _, _ in parts])))
        end = allocation.size
        for value, offset, size in parts:
            if value not in values:
                _refuse(f"allocation {allocation.index} holds an unknown logical buffer {value}")
            if not 0 <= offset <= offset + size <= end:
                _refuse(f"logical buffer {value} lies outside of allocation {allocation.index}")
            home[value] = number
            sizes[value] = size
    traces = tuple(_trace(t, home, allocations) for t in proto.heap_simulator_traces if t.events)
    return Buffers(
        allocations=tuple(allocations), values=_Places(values), home=home, bytes=sizes, traces=traces
    )


def _allocation(proto: protos.BufferAllocation, values: tuple[int, ...]) -> Allocation:
    if not 0 <= proto.size < _LARGEST:
        _refuse(f"allocation {proto.index} has a size that no device has")
    is_argument = proto.is_entry_computation_parameter
    return Allocation(
        bytes=proto.size,
        space=proto.color,
        kind=_kind(proto),
        live_out=proto.maybe_live_out,
        parameter=(proto.parameter_number, tuple(proto.parameter_shape_index[:])) if is_argument else None,
        values=values,
    )


def _kind(proto: protos.BufferAllocation) -> str:
    if proto.is_entry_computation_parameter:
        return "argument"
    if proto.is_thread_local:
        return "thread-local"
    if proto.is_constant:
        return "constant"
    return "output" if proto.maybe_live_out else "temp"


def _trace(proto: protos.HeapSimulatorTrace, home: Mapping[int, int], allocations: list[Allocation]) -> Trace:
    events = [(e.kind, e.buffer_id, e.share_with_canonical_id) for e in proto.events]
    kinds, values, shared = zip(*events, strict=True)
    if not home.keys() >= set(values):
        _refuse("a heap simulator trace has a logical buffer that lies nowhere")
    spaces = Counter([allocations[home[v]].space for v in values])
    return Trace(space=spaces.most_common(1)[0][0], kinds=kinds, values=values, shared=shared)


def _refuse(problem: str) -> NoReturn:
    raise UserError(f"the buffer assignment is damaged: {problem}; dump the module again")
