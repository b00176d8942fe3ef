"""HBM traffic of instructions: the bytes that one execution reads from and writes to HBM.

Counted from shapes, padded layouts and memory spaces, as the compiler's own figures count asynchronous
wrappers twice and opaque kernels as nothing. A value that is read several times by one instruction counts
once: how often a matmul's tiles are fetched again is not in the module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hloscope.analysis.fusion_use import body_use, buffers_updated, touched_by_update, uses_everything
from hloscope.analysis.work import is_plumbing, started_result
from hloscope.hlo import alike_work, once_for_each

if TYPE_CHECKING:
    from hloscope.hlo import Instruction, Shape

HBM = 0

VMEM = 1


@once_for_each
def hbm_bytes(instruction: Instruction) -> int | None:
    """HBM bytes that one execution of an instruction reads and writes; None where a size is unknown.

    Operands and results in other memory spaces are free. Slices, gathers, scatters and in-place updates
    count what they touch, alone and within fusions. Asynchronous work counts at its work instruction.
    """
    like = alike_work(instruction)
    return space_bytes(instruction, HBM) if like is instruction else hbm_bytes(like)


def space_bytes(instruction: Instruction, space: int) -> int | None:
    """The bytes that one execution reads and writes in a memory space, counted as `hbm_bytes` counts HBM."""
    if is_plumbing(instruction):
        return 0
    return None if _has_unknown_size(instruction) else _count(instruction, space)


def written_bytes(instruction: Instruction) -> int | None:
    """Of the `hbm_bytes` of a fusion or a plain operation those that it writes; None where a size is unknown."""
    if _has_unknown_size(instruction):
        return None
    if instruction.opcode == "fusion":
        return _fusion_writes(instruction, HBM)
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return _written(instruction, HBM)
    return _in_space(started_result(instruction), HBM)


def _count(instruction: Instruction, space: int) -> int:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode == "fusion":
        return _fusion_bytes(instruction, space)
    if opcode in ("slice", "dynamic-slice", "gather"):
        touched = instruction.shape.padded_bytes
        reads = _touched(operands[0].shape, touched, space)
        reads += _read(operands[1:], space, without=operands[0])
        return reads + _in_space(instruction.shape, space)
    if opcode in ("dynamic-update-slice", "scatter"):
        return _read(operands[buffers_updated(instruction) :], space) + _written(instruction, space)
    return _read(operands, space) + _in_space(started_result(instruction), space)


def _has_unknown_size(instruction: Instruction) -> bool:
    """Whether a value has bounds only (a dynamic dimension) or a type that this version does not know."""
    if not instruction.shape.is_sized:
        return True
    for operand in instruction.operands:  # noqa: SIM110 - a loop, as millions are asked
        if not operand.shape.is_sized:
            return True
    return False


def _in_space(shape: Shape, space: int) -> int:
    """Bytes of the parts of a value that lie in a memory space."""
    if space == HBM:
        return shape.hbm_bytes
    if shape.tuple_shapes is not None:
        return sum([_in_space(s, space) for s in shape.tuple_shapes])
    return shape.padded_bytes if shape.memory_space == space else 0


def _touched(shape: Shape, bytes_: int, space: int) -> int:
    """Bytes of a partial access to a value: nothing in other spaces, and never more than all of it."""
    return min(bytes_, _in_space(shape, space))


def _read(operands: Iterable[Instruction], space: int, *, without: Instruction | None = None) -> int:
    """Bytes of whole operands, each once."""
    once = {o.id: o for o in operands if o is not without}
    return sum([_in_space(o.shape, space) for o in once.values()])


def _written(update: Instruction, space: int) -> int:
    """Bytes that an in-place update touches in its buffers; a scatter also reads what it adds to."""
    results = update.shape.tuple_shapes or (update.shape,)
    pairs = zip(results, touched_by_update(update), strict=False)
    return sum(_touched(result, touched, space) for result, touched in pairs)


def _fusion_bytes(fusion: Instruction, space: int) -> int:
    if uses_everything(fusion):
        return _read(fusion.operands, space) + _in_space(fusion.shape, space)
    use = body_use(fusion)
    reads: dict[int, float] = {}
    for operand, fraction in zip(fusion.operands, use.reads, strict=False):
        reads[operand.id] = min(1.0, reads.get(operand.id, 0.0) + fraction)
    total = 0
    for operand in {o.id: o for o in fusion.operands}.values():
        total += round(_in_space(operand.shape, space) * reads.get(operand.id, 1.0))
    return total + _fusion_writes(fusion, space)


def _fusion_writes(fusion: Instruction, space: int) -> int:
    if uses_everything(fusion):
        return _in_space(fusion.shape, space)
    results, writes = fusion.shape.tuple_shapes or (fusion.shape,), body_use(fusion).writes
    if len(results) != len(writes):
        return _in_space(fusion.shape, space)
    total = 0
    for result, touched in zip(results, writes, strict=True):
        total += _in_space(result, space) if touched is None else _touched(result, touched, space)
    return total
