"""Copies from HBM to HBM: what a step moves without computing anything, in the same layout or into another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.layout import only_moves
from hloscope.analysis.uses import Use, results
from hloscope.analysis.work import running
from hloscope.hlo import Instruction, Module, Shape, async_operation, is_async_start, once_per_module

HBM = 0
_STANDING = frozenset({"copy", "copy-start", "transpose", "fusion", "async-start"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy that stands in the step (`instruction` is a start where it is asynchronous), what it copies, and who
    uses the result."""

    instruction: Instruction
    source: Instruction
    after: Shape
    uses: tuple[Use, ...]

    @property
    def bytes(self) -> int:
        """HBM bytes that one execution reads and writes, padding included."""
        return self.source.shape.padded_bytes + self.after.padded_bytes

    @property
    def relayouts(self) -> bool:
        """Whether elements lie in another order, or in other tiles, afterwards."""
        before, after = self.source.shape, self.after
        if before.dimensions != after.dimensions:
            return True
        if before.layout is None or after.layout is None:
            return False
        same_order = before.layout.minor_to_major == after.layout.minor_to_major
        return not same_order or before.layout.tiles != after.layout.tiles

    @property
    def converts(self) -> bool:
        """Whether the element type changes on the way."""
        return self.source.shape.element_type != self.after.element_type


@once_per_module
def copies(module: Module) -> tuple[Copy, ...]:
    """Every copy and transpose from HBM to HBM, alone, as a fusion of nothing else, or asynchronous."""
    standing = (c for c, place in running(module).items() if not place.asynchronous)
    return tuple(copy for c in standing for i in c.instructions for copy in _copy(i))


def _copy(instruction: Instruction) -> Iterator[Copy]:
    if instruction.opcode not in _STANDING:
        return
    if is_async_start(instruction.opcode):
        operation = async_operation(instruction)
        work, operands = operation.work, operation.operands
    else:
        work, operands = instruction, instruction.operands
    if work.opcode not in ("copy", "copy-start", "transpose") and not only_moves(work):
        return
    arrays = results(instruction)
    if len(operands) != 1 or len(arrays) != 1:
        return
    after, users = arrays[0]
    if after.memory_space == HBM == operands[0].shape.memory_space and not operands[0].shape.is_tuple:
        yield Copy(instruction=instruction, source=operands[0], after=after, uses=users)
