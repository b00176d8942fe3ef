"""Following a value back to where it is made: through copies, bitcasts, tuples, calls, fusions,
asynchronous operations and loop state that a loop does not change."""

from __future__ import annotations

from hloscope.hlo import Computation, Instruction, async_operation, is_async_part, start_of

# The same elements in the same or another order: what these do cannot change the set of values.
REARRANGING = frozenset(
    {"copy", "bitcast", "reshape", "transpose", "copy-start", "copy-done", "optimization-barrier", "convert"}
)
# A part of what comes in, or shards of it put together.
_PARTS = frozenset({"slice", "dynamic-slice", "all-gather"})
_DEEPEST = 200


def origin(instruction: Instruction) -> Instruction:
    """The instruction that makes the value, behind everything that only passes it on or rearranges it.

    Where the way back forks (a loop state element that the loop changes, a computation with several
    callers), the last instruction that is certain is returned.
    """
    current = instruction
    for _ in range(_DEEPEST):
        before = passed_on(current)
        if before is None:
            return current
        current = before
    return current


def passed_on(instruction: Instruction) -> Instruction | None:
    """The instruction whose value this one hands on (rearranged at most), or None if it makes its own."""
    opcode = instruction.opcode
    if opcode in REARRANGING:
        return instruction.operands[0] if instruction.operands else None
    if opcode == "parameter":
        return _argument(instruction)
    if opcode == "get-tuple-element":
        return _element(instruction)
    if opcode in ("call", "fusion") and not instruction.shape.is_tuple and instruction.called_computations:
        return instruction.called_computations[0].root
    if is_async_part(opcode) and not instruction.shape.is_tuple:
        return _result_of_async(instruction)
    return None


def _result_of_async(done: Instruction) -> Instruction | None:
    start = start_of(done)
    if start.opcode == "async-start" and start.called_computations:
        return start.called_computations[0].root
    return start if start.opcode == "copy-start" else None


def _argument(parameter: Instruction) -> Instruction | None:
    """What the one caller passes for a parameter."""
    callers = parameter.computation.callers
    number = parameter.proto.parameter_number
    if len(callers) != 1:
        return None
    caller = callers[0]
    if caller.opcode in ("call", "fusion"):
        operands = caller.operands
    elif caller.opcode == "async-start":
        operands = async_operation(caller).operands
    else:
        return None
    return operands[number] if number < len(operands) else None


def _element(element: Instruction) -> Instruction | None:
    source, index = element.operands[0], element.proto.tuple_index
    while source.opcode in ("optimization-barrier", "copy") and source.operands:
        source = source.operands[0]
    if source.opcode == "tuple":
        return source.operands[index] if index < len(source.operands) else None
    if source.opcode in ("fusion", "call") and source.called_computations:
        return _tuple_operand(source.called_computations[0].root, index)
    if source.opcode == "parameter":
        return _loop_invariant(source.computation, index)
    return None


def _tuple_operand(root: Instruction, index: int) -> Instruction | None:
    if root.opcode == "tuple" and index < len(root.operands):
        return root.operands[index]
    return None


def _loop_invariant(body: Computation, index: int) -> Instruction | None:
    """What a loop state element was before the loop, if the body hands it on untouched."""
    callers = body.callers
    if len(callers) != 1 or callers[0].opcode != "while":
        return None
    result = _tuple_operand(callers[0].called_computations[0].root, index)
    if result is None or result.opcode != "get-tuple-element" or result.proto.tuple_index != index:
        return None
    if result.operands[0].opcode != "parameter":
        return None
    return _tuple_operand(callers[0].operands[0], index)


def entry_parameter(value: Instruction) -> Instruction | None:
    """The parameter of the program that a value is (a part of), or was gathered from: through slices of a stack of
    layers, gathers, casts and whatever `origin` sees through; None where something else makes it."""
    current = value
    for _ in range(_DEEPEST):
        current = origin(current)
        if current.opcode == "parameter":
            return current if current.computation.id == current.module.entry.id else None
        start = start_of(current) if is_async_part(current.opcode) else current
        if start.opcode.removesuffix("-start") not in _PARTS:
            return None
        current = start.operands[0]
    return None
