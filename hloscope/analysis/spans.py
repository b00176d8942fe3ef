"""Buffers that live across a loop that does not touch them."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.memory import Buffer
from hloscope.analysis.memory_order import Order, flat_order
from hloscope.analysis.uses import uses_of_part
from hloscope.hlo import Instruction, Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanned:
    """A loop that begins after a buffer is made and ends before it is read last, though the loop does not use it.

    `share` is the part (0 to 1) of the step's schedule that the loop's body is.
    """

    loop: Instruction
    share: float


class Loops:
    """The loops of a module, with where in the flattened schedule they stand."""

    def __init__(self, module: Module) -> None:
        self._order = flat_order(module)
        loops = [i for i in self._order.instructions if i.opcode == "while" and i.called_computations]
        self._loops = [(loop, *self._extent(loop)) for loop in loops]

    def spanned_by(self, buffer: Buffer) -> Spanned | None:
        """The longest loop that a buffer only waits for; None where there is none."""
        if buffer.instruction is None or buffer.first is None or buffer.last is None:
            return None
        places = self._loops
        found = [x for x in places if buffer.first < x[1] and x[2] <= buffer.last and _beside(buffer, x[0])]
        if not found:
            return None
        loop, begin, end = max(found, key=lambda x: x[2] - x[1])
        return Spanned(loop=loop, share=(end - begin) / len(self._order.instructions))

    def _extent(self, loop: Instruction) -> tuple[int, int]:
        order: Order = self._order
        begins = [order.spans[c.id][0] for c in loop.called_computations if c.id in order.spans]
        return min(begins, default=order.positions[loop.id]), order.positions[loop.id]


def _beside(buffer: Buffer, loop: Instruction) -> bool:
    """Whether a buffer is made in the computation that holds a loop, and is no part of the loop's state."""
    made = buffer.instruction
    if made is None or made.computation.id != loop.computation.id or not loop.operands:
        return False
    state = {o.id for o in loop.operands} | {o.id for o in loop.operands[0].operands}
    users = uses_of_part(made, buffer.shape_index)
    return made.id not in state and not any(u.user.id in state or u.user is loop for u in users)
