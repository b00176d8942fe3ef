"""Computations that compute the same: clones of one body, one for each layer, forward, recomputed and backward.

What depends on nothing but opcodes, shapes, operands and attributes can be worked out for one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.hlo import protos
from hloscope.hlo.memo import once_for_each

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


@once_for_each
def alike_work(instruction: Instruction) -> Instruction:
    """The first instruction that was asked about and does the same with operands in the same shapes.

    Only fusions and plain operations are compared, unless they take one value twice; all else is like itself only.
    """
    opcode, operands = instruction.opcode, instruction.operands
    called = instruction.called_computations if opcode == "fusion" else ()
    if not (called or opcode in _PLAIN) or len(set(operands)) < len(operands):
        return instruction
    body = alike(called[0]) if called else None
    threads = (instruction.execution_thread, instruction.computation.execution_thread)
    form = (opcode, body, id(instruction.shape), threads, *[id(o.shape) for o in operands])
    return instruction.module.facts[alike_work].setdefault(form, instruction)


def _form(computation: Computation, depth: int) -> tuple[object, ...]:
    """Equal for computations that compute the same: every instruction by its opcode, shape, the places of its operands,
    and attributes."""
    instructions = computation.instructions
    place = {instruction: number for number, instruction in enumerate(instructions)}
    return (
        tuple([i.opcode for i in instructions]),
        tuple([id(i.shape) for i in instructions]),  # equal shapes of a module are one object
        tuple([tuple([place[o] for o in i.operands]) for i in instructions]),
        tuple([_attributes(i, depth) for i in instructions if i.opcode not in _PLAIN]),
        place[computation.root],
        computation.execution_thread,
    )


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
