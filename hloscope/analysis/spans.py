"""Buffers that live across a loop that does not touch them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from hloscope.analysis.memory import Buffer
from hloscope.analysis.memory_order import Order, flat_order
from hloscope.analysis.uses import Use, uses_of_part
from hloscope.hlo import Instruction, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanned:
    """A loop that begins after a buffer is made and ends before it is read last, though the loop does not use it.

    `share` is the part (0 to 1) of the step's schedule that the loop's body is.
    """

    loop: Instruction
    share: float


_Extent = tuple[Instruction, int, int]  # a loop, where its body begins, and its own position


class Loops:
    """The loops of a module, with where in the flattened schedule they stand."""

    def __init__(self, module: Module) -> None:
        self._order = flat_order(module)
        loops = [i for i in self._order.instructions if i.opcode == "while" and i.called_computations]
        extents = [(loop, *self._extent(loop)) for loop in loops]
        # By computation, the longest first.
        self._loops: dict[int, list[_Extent]] = {}
        for extent in sorted(extents, key=lambda x: x[1] - x[2]):
            self._loops.setdefault(extent[0].computation.id, []).append(extent)
        self._starts = {place: Starts([x[1:] for x in found]) for place, found in self._loops.items()}

    def spanned_by(self, buffer: Buffer) -> Spanned | None:
        """The longest loop that a buffer only waits for; None where there is none."""
        made, first, last = buffer.instruction, buffer.first, buffer.last
        if made is None or first is None or last is None:
            return None
        place = made.computation.id
        if place not in self._loops or self._starts[place].end_after(first) > last:
            return None
        users = uses_of_part(made, buffer.shape_index)
        for loop, begin, end in self._loops[place]:
            if first < begin and end <= last and not _touches(loop, made, users):
                return Spanned(loop=loop, share=(end - begin) / len(self._order.instructions))
        return None

    def _extent(self, loop: Instruction) -> tuple[int, int]:
        order: Order = self._order
        begins = [order.spans[c.id][0] for c in loop.called_computations if c.id in order.spans]
        return min(begins, default=order.positions[loop.id]), order.positions[loop.id]


class Starts:
    """The loops of a computation as they begin: of so many buffers most wait for none."""

    def __init__(self, loops: Iterable[tuple[int, int]]) -> None:
        """`loops` are where each begins and ends."""
        ordered = sorted(loops)
        self._begins = [begin for begin, _ in ordered]
        self._ends = list(accumulate((end for _, end in reversed(ordered)), min))[::-1]

    def end_after(self, position: int) -> float:
        """Where the first loop to end ends, of those that begin after a position; infinity without any."""
        following = bisect_right(self._begins, position)
        return self._ends[following] if following < len(self._ends) else inf


def _touches(loop: Instruction, made: Instruction, users: tuple[Use, ...]) -> bool:
    """Whether a value is a part of the loop's state; of a loop without a state, that is not known."""
    if not loop.operands:
        return True
    state = {o.id for o in loop.operands} | {o.id for o in loop.operands[0].operands}
    return made.id in state or any(u.user.id in state or u.user is loop for u in users)
