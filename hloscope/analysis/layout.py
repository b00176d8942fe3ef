"""Layout changes: copies and transposes that move data only so that it lies otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction, Shape, async_operation, is_async_part, start_of

# A fusion of nothing but these writes its operand again in another layout (or type).
_MOVING = frozenset({"parameter", "copy", "bitcast", "transpose", "reshape", "convert", "tuple"})
_DEEPEST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """A copy into another layout. `instruction` stands in the step (a start where it is asynchronous).

    `bytes` are HBM bytes that one execution reads and writes.
    """

    instruction: Instruction
    before: Shape
    after: Shape

    @property
    def bytes(self) -> int:
        """HBM bytes that one execution reads and writes, padding included."""
        return sum(s.padded_bytes for s in (self.before, self.after) if s.memory_space == 0)

    @property
    def changes_major(self) -> bool:
        """Whether another dimension lies outermost in memory afterwards."""
        before, after = major_dimension(self.before), major_dimension(self.after)
        return before is not None and after is not None and before != after


def major_dimension(shape: Shape) -> int | None:
    """The dimension that varies slowest in memory, those of size 1 left out; None without a layout."""
    if shape.layout is None:
        return None
    order = reversed(shape.layout.minor_to_major)
    return next((d for d in order if shape.dimensions[d] > 1), None)


def layout_changes(value: Instruction) -> tuple[Instruction, tuple[LayoutChange, ...]]:
    """What makes a value, and the layout changes on the way from there, last first."""
    changes: list[LayoutChange] = []
    current = value
    for _ in range(_DEEPEST):
        before, change = _step_back(current)
        if before is None:
            break
        if change is not None:
            changes.append(change)
        current = before
    return current, tuple(changes)


def _step_back(value: Instruction) -> tuple[Instruction | None, LayoutChange | None]:
    opcode = value.opcode
    if opcode in ("bitcast", "reshape", "optimization-barrier"):
        return value.operands[0], None
    if is_async_part(opcode) and value.operands:
        return _step_back_async(value)
    if opcode in ("copy", "transpose") or only_moves(value):
        source = next((o for o in value.operands if o.shape.elements == value.shape.elements), None)
        return (source, _change(value, source.shape, value.shape)) if source is not None else (None, None)
    return None, None


def _step_back_async(done: Instruction) -> tuple[Instruction | None, LayoutChange | None]:
    start = start_of(done)
    if not start.opcode.endswith("-start"):
        return None, None
    operation = async_operation(start)
    if not operation.operands:
        return None, None
    source = operation.operands[0]
    if operation.opcode in ("copy", "transpose") or only_moves(operation.work):
        return source, _change(start, source.shape, done.shape)
    return None, None


def _change(instruction: Instruction, before: Shape, after: Shape) -> LayoutChange | None:
    """None for a copy between memory spaces that keeps the layout."""
    if before.is_tuple or after.is_tuple or before.layout is None or after.layout is None:
        return None
    same = (
        before.dimensions == after.dimensions and before.layout.minor_to_major == after.layout.minor_to_major
    )
    return None if same else LayoutChange(instruction=instruction, before=before, after=after)


def only_moves(value: Instruction) -> bool:
    """Whether a fusion writes its operand again in another layout (or type) and does nothing else."""
    if value.opcode != "fusion" or value.shape.is_tuple or not value.called_computations:
        return False
    opcodes = body_opcodes(value)
    return opcodes <= _MOVING and not opcodes.isdisjoint(("copy", "transpose"))
