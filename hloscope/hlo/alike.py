"""Computations that compute the same: clones of one body, one for each layer, forward, recomputed and backward.

What depends on nothing but opcodes, shapes, operands and attributes can be worked out for one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.hlo import protos

if TYPE_CHECKING:
    from hloscope.hlo.instruction import Computation, Instruction

# Computations nest a few levels; what nests deeper is like itself only.
_DEEPEST = 10
# Opcode, shape and operands tell all of these.
_PLAIN = frozenset({
    "add", "subtract", "multiply", "divide", "negate", "maximum", "minimum", "exponential", "tanh", "logistic", "rsqrt",
    "sqrt", "abs", "convert", "bitcast", "reshape", "copy", "tuple", "select", "and", "or", "not", "clamp", "power",
})  # fmt: skip
_WITH_DIMENSIONS = frozenset({"broadcast", "transpose", "reduce", "concatenate"})
# Fields that name an instruction or place it in the program, and those that are compared on their own.
_ELSEWHERE = (
    "name", "id", "metadata", "opcode", "shape", "operand_ids", "control_predecessor_ids", "called_computation_ids",
)  # fmt: skip


def alike(computation: Computation, depth: int = 0) -> Computation:
    """The first computation that was asked about and computes the same as this one.

    Its instructions are those of this one, in the same order, but for ids, names and metadata; its callers are others.
    """
    known = computation.module.facts[alike]
    if computation not in known:
        if depth > _DEEPEST:
            return computation
        form = _form(computation, depth)
        known[computation] = computation.module.facts[_form].setdefault(form, computation)
    return known[computation]


def _form(computation: Computation, depth: int) -> tuple[object, ...]:
    """Equal for computations that compute the same: every instruction by its opcode, shape, the places of its operands,
    and attributes. Only opcodes are text, so that it reads in one way."""
    place: dict[Instruction, int] = {}
    form: list[object] = []
    for number, instruction in enumerate(computation.instructions):
        place[instruction] = number
        # Equal shapes of a module are one object.
        form += (instruction.opcode, id(instruction.shape))
        for operand in instruction.operands:
            form.append(place[operand])
        if instruction.opcode not in _PLAIN:
            form.append(_attributes(instruction, depth))
    form.append((place[computation.root], computation.execution_thread))
    return tuple(form)


def _attributes(instruction: Instruction, depth: int) -> object:
    opcode, proto = instruction.opcode, instruction.proto
    if opcode == "parameter":
        return (proto.parameter_number,)
    if opcode == "get-tuple-element":
        return (proto.tuple_index,)
    if opcode == "constant":
        return (proto.literal.SerializeToString(),)
    callees = tuple([id(alike(c, depth + 1)) for c in instruction.called_computations])
    if opcode in _WITH_DIMENSIONS:
        return (instruction.dimensions, callees)
    bare = protos.Instruction()
    bare.CopyFrom(proto)
    for field in _ELSEWHERE:
        bare.ClearField(field)
    return (bare.SerializeToString(), callees)
