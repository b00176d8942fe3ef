"""Buffers that live across a loop that does not touch them."""

from __future__ import annotations

from dataclasses import dataclass

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


class Loops:
    """The loops of a module, with where in the flattened schedule they stand."""

    def __init__(self, module: Module) -> None:
        self._order = flat_order(module)
        loops = [i for i in self._order.instructions if i.opcode == "while" and i.called_computations]
        extents = [(loop, *self._extent(loop)) for loop in loops]
        self._loops = sorted(extents, key=lambda x: x[1] - x[2])  # the longest first

    def spanned_by(self, buffer: Buffer) -> Spanned | None:
        """The longest loop that a buffer only waits for; None where there is none."""
        made, first, last = buffer.instruction, buffer.first, buffer.last
        if made is None or first is None or last is None:
            return None
        waited = [
            x
            for x in self._loops
            if first < x[1] and x[2] <= last and x[0].computation.id == made.computation.id
        ]
        users = uses_of_part(made, buffer.shape_index) if waited else ()
        for loop, begin, end in waited:
            if not _touches(loop, made, users):
                return Spanned(loop=loop, share=(end - begin) / len(self._order.instructions))
        return None

    def _extent(self, loop: Instruction) -> tuple[int, int]:
        order: Order = self._order
        begins = [order.spans[c.id][0] for c in loop.called_computations if c.id in order.spans]
        return min(begins, default=order.positions[loop.id]), order.positions[loop.id]


def _touches(loop: Instruction, made: Instruction, users: tuple[Use, ...]) -> bool:
    """Whether a value is a part of the loop's state; of a loop without a state, that is not known."""
    if not loop.operands:
        return True
    state = {o.id for o in loop.operands} | {o.id for o in loop.operands[0].operands}
    return made.id in state or any(u.user.id in state or u.user is loop for u in users)
