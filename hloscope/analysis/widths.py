"""Values that are only kept in another type: widened from what came in narrow, or narrowed right after."""

from __future__ import annotations

from hloscope.analysis.uses import Use
from hloscope.analysis.values import REARRANGING
from hloscope.hlo import Instruction

# What keeps every element's value, so that a change of type before it is one after it as well.
_KEEPING = (REARRANGING - {"convert"}) | {
    "slice",
    "dynamic-slice",
    "broadcast",
    "reverse",
    "get-tuple-element",
}
_DEEPEST = 30


def widened_from(value: Instruction, index: int | None = None) -> Instruction | None:
    """The narrower value that a value is a mere conversion of, or None. `index` picks a part of a fusion's tuple.

    Followed through copies, slices, layout changes and into fusions; arithmetic in between ends it.
    """
    bits, callers, current = _bits(value, index), list[Instruction](), value
    for _ in range(_DEEPEST):
        if current.opcode == "fusion" and current.called_computations:
            root = current.called_computations[0].root
            callers.append(current)
            part = (
                root.operands[index : index + 1] if root.opcode == "tuple" and index is not None else (root,)
            )
            if not part:
                return None
            (current,) = part
        elif current.opcode == "get-tuple-element":
            index, current = current.tuple_index, current.operands[0]
            if current.opcode not in ("fusion",):
                return None
        elif current.opcode == "convert":
            inner = current.operands[0]
            if inner.shape.element_bits < current.shape.element_bits == bits:
                return inner
            return None
        elif current.opcode == "parameter" and callers:
            given, number = callers.pop().operands, current.proto.parameter_number
            if not 0 <= number < len(given):
                return None  # a damaged call passes less than its body takes
            current = given[number]
        elif current.opcode in _KEEPING and current.operands:
            current = current.operands[0]
        else:
            return None
    return None


def narrowed_to(use: Use, depth: int = 0) -> int | None:
    """The bits of the type that a user turns a value into before anything else, or None where it reads it as it is."""
    user, bits = use.user, use.value.shape.element_bits
    if user.opcode == "convert":
        return user.shape.element_bits if user.shape.element_bits < bits else None
    if user.opcode != "fusion" or not user.called_computations or depth > _DEEPEST:
        return None
    parameters = user.called_computations[0].parameters
    if use.operand >= len(parameters):
        return None
    return _narrowed_within(parameters[use.operand], depth)


def _narrowed_within(value: Instruction, depth: int) -> int | None:
    """The widest type that all users of a value in a fusion's body turn it into."""
    found: set[int] = set()
    for user in value.users:
        if user.opcode in _KEEPING - {"get-tuple-element"} and user.operands[0] is value:
            inner = _narrowed_within(user, depth + 1) if depth < _DEEPEST else None
        else:
            inner = narrowed_to(Use(user=user, operand=user.operands.index(value)), depth + 1)
        if inner is None:
            return None
        found.add(inner)
    return max(found, default=None)


def _bits(value: Instruction, index: int | None) -> int:
    parts = value.shape.tuple_shapes
    return (parts[index] if parts and index is not None else value.shape).element_bits
