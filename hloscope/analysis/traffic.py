"""HBM traffic of instructions: the bytes that one execution reads from and writes to HBM.

Counted from shapes, padded layouts and memory spaces, as the compiler's own figures count asynchronous
wrappers twice and opaque kernels as nothing. A value that is read several times by one instruction counts
once: how often a matmul's tiles are fetched again is not in the module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hloscope.analysis.fusion_use import body_use, buffers_updated, touched_by_update
from hloscope.analysis.work import is_plumbing, started_result

if TYPE_CHECKING:
    from hloscope.hlo import Instruction, Module, Shape

HBM = 0

# Bytes by instruction, per module and for as long as the module lives; figures only, so nothing leaks.
_known: WeakKeyDictionary[Module, dict[tuple[int, int], int | None]] = WeakKeyDictionary()


def hbm_bytes(instruction: Instruction) -> int | None:
    """HBM bytes that one execution of an instruction reads and writes; None where a size is unknown.

    Operands and results in other memory spaces are free. Slices, gathers, scatters and in-place updates
    count what they touch, alone and within fusions. Asynchronous work counts at its work instruction.
    """
    if is_plumbing(instruction):
        return 0
    known = _known.setdefault(instruction.module, {})
    key = (instruction.computation.id, instruction.id)
    if key not in known:
        known[key] = None if _has_unknown_size(instruction) else _count(instruction)
    return known[key]


def _count(instruction: Instruction) -> int:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "fusion":
        return _fusion_bytes(instruction)
    if opcode in ("slice", "dynamic-slice", "gather"):
        touched = instruction.shape.padded_bytes
        reads = _touched(operands[0].shape, touched) + _read(operands[1:], without=operands[0])
        return reads + _space_bytes(instruction.shape)
    if opcode in ("dynamic-update-slice", "scatter"):
        return _read(operands[buffers_updated(instruction) :]) + _written(instruction)
    return _read(operands) + _space_bytes(started_result(instruction))


def _has_unknown_size(instruction: Instruction) -> bool:
    """Whether a value has bounds only (a dynamic dimension) or a type that this version does not know."""
    return _is_unknown(instruction.shape) or any(_is_unknown(o.shape) for o in instruction.operands)


def _is_unknown(shape: Shape) -> bool:
    if shape.tuple_shapes is not None:
        return any(_is_unknown(s) for s in shape.tuple_shapes)
    return bool(shape.dynamic) or shape.element_type.startswith("type")


def _space_bytes(shape: Shape) -> int:
    """Bytes of the parts of a value that lie in HBM."""
    if shape.tuple_shapes is not None:
        return sum(_space_bytes(s) for s in shape.tuple_shapes)
    return shape.padded_bytes if shape.memory_space == HBM else 0


def _touched(shape: Shape, bytes_: int) -> int:
    """Bytes of a partial access to a value: nothing off HBM, and never more than all of it."""
    return min(bytes_, _space_bytes(shape))


def _read(operands: Iterable[Instruction], *, without: Instruction | None = None) -> int:
    """Bytes of whole operands, each once."""
    once = {o.id: o for o in operands if o is not without}
    return sum(_space_bytes(o.shape) for o in once.values())


def _written(update: Instruction) -> int:
    """HBM bytes that an in-place update touches in its buffers; a scatter also reads what it adds to."""
    results = update.shape.tuple_shapes or (update.shape,)
    pairs = zip(results, touched_by_update(update), strict=False)
    return sum(_touched(result, touched) for result, touched in pairs)


def _fusion_bytes(fusion: Instruction) -> int:
    use = body_use(fusion)
    reads: dict[int, float] = {}
    for operand, fraction in zip(fusion.operands, use.reads, strict=False):
        reads[operand.id] = min(1.0, reads.get(operand.id, 0.0) + fraction)
    total = 0
    for operand in {o.id: o for o in fusion.operands}.values():
        total += round(_space_bytes(operand.shape) * reads.get(operand.id, 1.0))
    results = fusion.shape.tuple_shapes or (fusion.shape,)
    if len(results) != len(use.writes):
        return total + _space_bytes(fusion.shape)
    for result, touched in zip(results, use.writes, strict=True):
        total += _space_bytes(result) if touched is None else _touched(result, touched)
    return total
