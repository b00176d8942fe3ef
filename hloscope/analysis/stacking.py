"""Stacks: buffers that a loop carries, into a slot of which each trip writes a value (scan's outputs and residuals)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.memory_names import update_of
from hloscope.analysis.uses import Use, uses
from hloscope.analysis.values import REARRANGING, entry_parameter
from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction, Module, Shape

_DEEPEST = 30
_MOST_PARTS = 2000
# What puts arrays side by side, and what may stand beside it without computing anything.
_JOINS = frozenset({"concatenate", "dynamic-update-slice", "pad"})
_ALONG = REARRANGING | {
    "parameter",
    "constant",
    "broadcast",
    "maximum",
    "fusion",
    "tuple",
    "get-tuple-element",
}


def stacked_by(use: Use) -> Shape | None:
    """The stack that a use writes all of a value into, or None where it does something else with it.

    An update of a slot, alone or as a result of a fusion in which the value only changes type or layout before.
    """
    user = use.user
    if user.opcode == "dynamic-update-slice":
        return user.shape if use.operand == 1 and _has_slots(user) else None
    if user.opcode != "fusion" or not user.called_computations:
        return None
    body = user.called_computations[0]
    results = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    for result in results:
        update = _through(result)
        if update.opcode == "dynamic-update-slice" and _has_slots(update):
            written = _through(update.operands[1])
            if written.opcode == "parameter" and written.proto.parameter_number == use.operand:
                return update.shape
    return None


def _has_slots(update: Instruction) -> bool:
    """Whether an update fills one slot of several: all of a buffer but its first dimension."""
    stack, slot = update.shape.dimensions, update.operands[1].shape.dimensions
    return len(stack) == len(slot) and stack[:1] > slot[:1] == (1,) and stack[1:] == slot[1:]


def _through(value: Instruction) -> Instruction:
    """What makes a value within a body, behind changes of type and layout."""
    for _ in range(_DEEPEST):
        if value.opcode == "fusion" and value.called_computations and not value.shape.is_tuple:
            inner = _through(value.called_computations[0].root)
            if inner.opcode != "parameter":
                return inner
            value = value.operands[inner.proto.parameter_number]
        elif value.opcode in REARRANGING and value.operands:
            value = value.operands[0]
        else:
            break
    return value


def parts_of_stack(value: Instruction) -> tuple[Instruction, tuple[Instruction, ...]]:
    """What puts a value together, as it stands in the step, and the distinct parameters of the program that it is put
    together from; none where it is made in another way. Seen behind casts, copies and layout changes."""
    made = value
    while made.opcode in REARRANGING and made.operands:
        made = made.operands[0]
    parts = dict.fromkeys(_parts(made))
    known = sum(p.shape.elements for p in parts)
    # The first part may stand in a buffer that is made otherwise.
    return made, tuple(parts) if made.shape.elements < 2 * known <= 2 * made.shape.elements else ()


def _parts(made: Instruction) -> Iterator[Instruction]:
    """The parameters that are put side by side, at once or one after another into the same buffer."""
    current: Instruction | None = made
    for _ in range(_MOST_PARTS):
        if current is None or current.shape.is_tuple or not _joins(current):
            return
        before: Instruction | None = None
        for operand in current.operands:
            if operand.shape.elements == made.shape.elements:
                before = operand
            elif operand.shape.elements > 1 and (parameter := entry_parameter(operand)) is not None:
                yield parameter
        current = before


def _joins(made: Instruction) -> bool:
    """Whether an instruction only puts its operands side by side."""
    if made.opcode in ("concatenate", "dynamic-update-slice"):
        return True
    if made.opcode != "fusion":
        return False
    opcodes = body_opcodes(made)
    return not opcodes.isdisjoint(_JOINS) and opcodes <= _JOINS | _ALONG


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStack:
    """A stack that a loop of the program fills: part `index` of its state.

    `update` writes a slot, alone or as a fusion; `slot` is the shape of one.
    """

    loop: Instruction
    index: int
    update: Instruction
    slot: Shape

    def lies_in(self, made: Instruction, shape_index: tuple[int, ...]) -> bool:
        """Whether a buffer that an instruction defines is the stack's: as it begins, as the loop carries it, or as it
        is updated."""
        if made.id in (self.update.id, self._beginning):
            return True
        carries = made is self.loop or made in self.loop.called_computations[0].parameters
        return carries and shape_index == (self.index,)

    @property
    def _beginning(self) -> int | None:
        state = self.loop.operands[0] if self.loop.operands else None
        if state is None or state.opcode != "tuple" or self.index >= len(state.operands):
            return None
        return state.operands[self.index].id

    @property
    def uses(self) -> tuple[Use, ...]:
        """Who reads it behind the loop."""
        parts = (
            u for u in self.loop.users if u.opcode == "get-tuple-element" and u.tuple_index == self.index
        )
        return tuple(use for part in parts for use in uses(part))


def loop_stacks(module: Module) -> Iterator[LoopStack]:
    """The stacks that loops of the entry computation fill."""
    for loop in module.entry.instructions:
        if loop.opcode != "while" or not loop.called_computations:
            continue
        root = loop.called_computations[0].root
        for index, result in enumerate(root.operands if root.opcode == "tuple" else ()):
            update, part = _made(result)
            written = update_of(update, part)
            if written is not None and _is_slot(written.shape, result.shape):
                yield LoopStack(loop=loop, index=index, update=update, slot=written.shape)


def _made(result: Instruction) -> tuple[Instruction, tuple[int, ...]]:
    """What makes a result of a body, and which part of its results it is."""
    part: tuple[int, ...] = ()
    for _ in range(_DEEPEST):
        if result.opcode == "get-tuple-element" and result.operands:
            part = (result.proto.tuple_index,)
        elif result.opcode not in REARRANGING or not result.operands:
            break
        result = result.operands[0]
    return result, part


def _is_slot(slot: Shape, stack: Shape) -> bool:
    count = stack.dimensions[0] if stack.is_array and stack.dimensions else 0
    return count > 1 and slot.elements * count == stack.elements
