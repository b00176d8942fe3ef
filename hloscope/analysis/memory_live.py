"""Live bytes over the schedule, replayed from a heap simulator trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hloscope.analysis.memory_order import LastUses, Order
from hloscope.errors import UserError
from hloscope.hlo.buffers import ALLOC, FREE, SHARE_WITH, Buffers, Trace

Ints = NDArray[np.int64]

# A downsampled curve has at most this many buckets of three points each.
_BUCKETS = 660


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place in the heap from its first value to the end of its last: values that share it are one."""

    canonical: int  # the value whose size counts
    values: list[tuple[int, int]]  # the events that bring them, and the values, in that order
    begin: int  # event that allocates it
    end: int | None = None  # event that frees it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Bytes of one heap over time.

    `positions` and `bytes` are parallel, int64: from that schedule position on, that many bytes are live.
    `peak_event` is the event that reaches `peak_bytes` first; `slots` are all that ever lived, in the order of
    their begin; `event_positions` tells where in the schedule an event takes effect.
    """

    positions: Ints
    bytes: Ints
    peak_bytes: int
    peak_event: int
    slots: tuple[Slot, ...]
    event_positions: Ints

    @property
    def slots_at_peak(self) -> tuple[Slot, ...]:
        """What is alive at the peak."""
        peak = self.peak_event
        return tuple(s for s in self.slots if s.begin <= peak and (s.end is None or s.end > peak))


def replay(trace: Trace, buffers: Buffers, order: Order) -> Replay:
    """Replay a trace. Raises UserError where it frees what is not alive or shares with what never was."""
    live, slots = _heap(trace, buffers.bytes)
    peak = int(np.argmax(live))
    at = _event_positions(trace, buffers, order)
    # The last event at a position tells what is live there: what dies at a position still lives at it, so
    # that its free takes effect one position later, before anything is allocated there.
    last = np.flatnonzero(np.diff(at, append=at[-1] + 1))
    return Replay(
        positions=at[last],
        bytes=live[last],
        peak_bytes=int(live[peak]),
        peak_event=peak,
        slots=tuple(slots),
        event_positions=at,
    )


def _heap(trace: Trace, sizes: Mapping[int, int]) -> tuple[Ints, list[Slot]]:
    """Live bytes after every event, and every slot."""
    live: list[int] = []
    slots: list[Slot] = []
    open_slots: dict[int, Slot] = {}  # by canonical value
    canonical: dict[int, int] = {}
    alive: dict[int, int] = {}  # values alive in a slot, by canonical value
    held: set[int] = set()
    total = 0
    for event, (kind, value, shared) in enumerate(zip(trace.kinds, trace.values, trace.shared, strict=True)):
        if kind == FREE:
            if value not in held:
                _refuse(event, "frees a buffer that is not alive")
            held.discard(value)
            slot = canonical[value]
            alive[slot] -= 1
            if not alive[slot]:
                total -= sizes[slot]
                open_slots.pop(slot).end = event
        else:
            if value in held or kind not in (ALLOC, SHARE_WITH):
                _refuse(event, "allocates a buffer twice")
            if kind == SHARE_WITH and shared not in canonical:
                _refuse(event, "shares with a buffer that never was")
            slot = canonical[value] = value if kind == ALLOC else canonical[shared]
            held.add(value)
            if not alive.get(slot):
                # A slot may come back after all of its values were freed.
                total += sizes[slot]
                open_slots[slot] = Slot(canonical=slot, values=[], begin=event)
                slots.append(open_slots[slot])
            alive[slot] = alive.get(slot, 0) + 1
            open_slots[slot].values.append((event, value))
        live.append(total)
    return np.array(live, dtype=np.int64), slots


def _event_positions(trace: Trace, buffers: Buffers, order: Order) -> Ints:
    """Schedule positions at which events take effect; they never decrease.

    An allocation does where its value is defined. The trace does not say where a value is freed, only
    between which allocations: within these bounds it is after the last use that can be found.
    """
    kinds = np.asarray(trace.kinds)
    asked: list[int] = []
    uses = LastUses(order)
    for kind, value in zip(trace.kinds, trace.values, strict=True):
        number, index = buffers.values[value]
        position = order.positions.get(number)
        if position is None:
            asked.append(-1)
        elif kind == FREE:
            asked.append(uses.of(order.instructions[position], index) + 1)
        else:
            asked.append(order.begin(order.instructions[position]))
    wanted = np.array(asked, dtype=np.int64)
    begins = np.where(kinds == FREE, -1, wanted)
    earliest = np.maximum(np.maximum.accumulate(begins), 0)
    end = max(len(order.instructions), int(earliest[-1]))
    # What is allocated next bounds a free from above: nothing is freed later than that.
    following = np.minimum.accumulate(np.where(kinds == FREE, end, earliest)[::-1])[::-1]
    frees = np.clip(wanted, np.minimum(earliest + 1, following), following)
    return np.maximum.accumulate(np.where(kinds == FREE, frees, earliest))


def downsample(positions: Ints, values: Ints) -> tuple[Ints, Ints]:
    """At most about 2,000 points of a curve: first, lowest and highest of each of 660 equal stretches, so
    that no maximum is lost that reaches above its stretch, and the peak stays exact."""
    if len(positions) <= 3 * _BUCKETS:
        return positions, values
    keep: set[int] = {0, len(positions) - 1, int(np.argmax(values))}
    edges = np.linspace(0, len(positions), _BUCKETS + 1).astype(np.int64)
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[begin:end]
        keep |= {begin, begin + int(np.argmin(part)), begin + int(np.argmax(part))}
    chosen = np.array(sorted(keep), dtype=np.int64)
    return positions[chosen], values[chosen]


def _refuse(event: int, problem: str) -> NoReturn:
    raise UserError(f"the heap simulator trace is damaged: event {event} {problem}; dump the module again")
