"""What a fusion's body really uses of its operands and writes of its results.

A fusion computes only what its result needs: an operand that is only sliced or gathered is read in part,
and a buffer that is updated in place is not read at all. Worked out in one walk over the body, from its
result back to its parameters, as the fraction of each value that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.analysis.work import body_opcodes
from hloscope.hlo import alike, once_for_each

if TYPE_CHECKING:
    from hloscope.hlo import Computation, Instruction

_UPDATES = frozenset({"dynamic-update-slice", "scatter"})
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_PARTIAL = _UPDATES | _SLICES
_NEEDS_A_LOOK = _PARTIAL | {"fusion"}

# One operand in, the same elements out, in whatever order or layout.
_TRANSPARENT = frozenset({"bitcast", "reshape", "copy", "convert", "transpose", "reverse"})

# These need every element of every operand, whatever part of their result is needed.
_WHOLE = frozenset({
    "dot", "convolution", "reduce", "reduce-window", "sort", "broadcast", "custom-call", "map", "fft",
    "cholesky", "triangular-solve", "select-and-scatter", "call", "all-reduce", "all-gather",
    "reduce-scatter", "all-to-all",
})  # fmt: skip

# Bodies nest a few levels; deeper is damage, whose uses count whole.
_DEEPEST = 10
# A chain of updates and copies behind one result; longer ones count whole.
_LONGEST = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyUse:
    """Of each operand the fraction that is read; of each result the bytes that an in-place update touches,
    or None where all of it is written."""

    reads: Sequence[float]
    writes: Sequence[int | None]


@once_for_each
def body_use(fusion: Instruction) -> BodyUse:
    """What a fusion uses of its operands and results, in their order."""
    if uses_everything(fusion):
        results = fusion.shape.tuple_shapes or (fusion.shape,)
        return BodyUse(reads=[1.0] * len(fusion.operands), writes=[None] * len(results))
    return _use_of(alike(fusion.called_computations[0]))


@once_for_each
def _use_of(body: Computation) -> BodyUse:
    in_place = _updates(body)
    writes = [sum(sum(touched_by_update(u)) for u in found) if found else None for found in in_place]
    use = _needed(body)
    return BodyUse(reads=[use.get(p.id, 0.0) for p in body.parameters], writes=writes)


def made_bytes(instruction: Instruction) -> int:
    """Bytes of what one execution makes, in any memory space: its results, padding in; of what is updated in place,
    what is put in."""
    results = instruction.shape.tuple_shapes or (instruction.shape,)
    if instruction.opcode == "dynamic-update-slice":
        return sum(touched_by_update(instruction))
    writes = body_use(instruction).writes if instruction.opcode == "fusion" else ()
    if len(writes) != len(results):
        return instruction.shape.padded_bytes
    return sum(
        r.padded_bytes if w is None else min(w, r.padded_bytes) for r, w in zip(results, writes, strict=True)
    )


def uses_everything(fusion: Instruction) -> bool:
    """Whether nothing in a fusion slices or updates, so that it reads and writes all: told without a look at
    its body."""
    return body_opcodes(fusion).isdisjoint(_PARTIAL)


def buffers_updated(update: Instruction) -> int:
    """How many operands of a dynamic-update-slice or scatter, the first ones, are buffers that it updates."""
    return len(update.operands) // 2 if update.opcode == "scatter" else 1


def touched_by_update(update: Instruction) -> list[int]:
    """Bytes of each buffer that an update touches: writes, and for a scatter also reads to combine with."""
    count = buffers_updated(update)
    if update.opcode == "scatter":
        return [2 * o.shape.padded_bytes for o in update.operands[count + 1 :]]
    return [update.operands[1].shape.padded_bytes]


def _updates(body: Computation) -> list[list[Instruction]]:
    """For each result of a fusion the updates that it consists of, if they are made in place."""
    root = body.root
    return [_in_place_updates(output) for output in (root.operands if root.opcode == "tuple" else (root,))]


def _names(in_place: list[list[Instruction]]) -> frozenset[str]:
    return frozenset(u.name for found in in_place for u in found)


def _in_place_updates(output: Instruction) -> list[Instruction]:
    """The updates that one result of a fusion consists of, if they are made in a buffer that comes in; else
    none. Followed through transparent instructions and nested fusions; only a buffer of the same size can be
    taken over."""
    found: list[Instruction] = []
    callers: list[Instruction] = []
    value = output
    for _ in range(_LONGEST):
        if value.opcode in _UPDATES:
            found.append(value)
        if value.opcode in _UPDATES or value.opcode in _TRANSPARENT:
            value = value.operands[0]
        elif value.opcode == "fusion" and value.called_computations:
            callers.append(value)
            value = value.called_computations[0].root
        elif value.opcode == "parameter" and callers:
            number, given = value.proto.parameter_number, callers.pop().operands
            if not 0 <= number < len(given):
                return []
            value = given[number]
        else:
            break
    comes_in = value.opcode == "parameter" and not callers
    return found if comes_in and value.shape.padded_bytes == output.shape.padded_bytes else []


def instruction_use(body: Computation) -> Mapping[int, float] | None:
    """The fraction of each instruction of a fusion's body that its result needs, by id (absent: nothing);
    None where all of everything is needed."""
    if body.module.opcodes_in(body.id).isdisjoint(_NEEDS_A_LOOK):
        return None
    return _needed(body)


@once_for_each
def _needed(body: Computation) -> Mapping[int, float]:
    """The fraction of each instruction's value that the whole result of a fusion needs, by id."""
    return _use(body, 1.0, _names(_updates(body)), 0)


def _parameter_use(body: Computation, needed: float, updated: frozenset[str], depth: int) -> list[float]:
    """The fraction of each parameter that is read when `needed` of the result is."""
    use = _use(body, needed, updated, depth)
    return [use.get(p.id, 0.0) for p in body.parameters]


def _use(body: Computation, needed: float, updated: frozenset[str], depth: int) -> dict[int, float]:
    """The fraction of each instruction's value that is needed when `needed` of the result is."""
    use: dict[int, float] = {body.proto.root_id: needed}
    for instruction in reversed(body.instructions):
        fraction = use.get(instruction.id, 0.0)
        if fraction <= 0.0 or not instruction.operands:
            continue
        for operand, part in zip(
            instruction.operands, _operand_use(instruction, fraction, updated, depth), strict=False
        ):
            use[operand.id] = min(1.0, use.get(operand.id, 0.0) + part)
    return use


def _operand_use(
    instruction: Instruction, fraction: float, updated: frozenset[str], depth: int
) -> Sequence[float]:
    """The fraction of each operand that an instruction reads for `fraction` of its result."""
    opcode, count = instruction.opcode, len(instruction.operands)
    if opcode in _SLICES:
        ratio = _ratio(instruction, instruction.operands[0])
        return [fraction * ratio, *[1.0] * (count - 1)]
    if opcode in _UPDATES:
        buffers = buffers_updated(instruction)
        kept = 0.0 if instruction.name in updated else fraction
        return [kept] * buffers + [1.0] * (count - buffers)
    if opcode == "fusion" and instruction.called_computations and depth < _DEEPEST:
        return _parameter_use(instruction.called_computations[0], fraction, updated, depth + 1)
    if opcode in ("pad", "concatenate"):
        return [min(1.0, fraction / _ratio(o, instruction)) for o in instruction.operands]
    if opcode in _WHOLE:
        return [1.0] * count
    return [fraction] * count


def _ratio(part: Instruction, whole: Instruction) -> float:
    """How many elements the one value has of the other's, at most all and never none."""
    return (
        min(1.0, part.shape.elements / whole.shape.elements)
        if part.shape.elements and whole.shape.elements
        else 1.0
    )
