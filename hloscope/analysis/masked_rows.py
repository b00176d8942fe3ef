"""Rows repeated for every group and masked, [groups, rows, columns]: a grouped matmul expanded into a dense one."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.values import REARRANGING, passed_on
from hloscope.hlo import Instruction, Module

_MASKING = REARRANGING | {"broadcast", "and", "or", "not"}
_MASKED = ("select", "multiply")
_DEEPEST = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows:
    """A value that holds rows once for every group, and the matmul that takes it.

    `instruction` stands in the step (a fusion where it is made within one), `matmul` may be in a fusion.
    """

    instruction: Instruction
    value: Instruction
    groups: int
    matmul: Instruction


def masked_rows(module: Module) -> tuple[MaskedRows, ...]:
    """Every select or product of rows, broadcast over groups, with a mask that compares row or group numbers, whose
    result a matmul takes."""
    places = (c for c in module.computations if not module.opcodes_in(c.id).isdisjoint(_MASKED))
    found = (_recognise(i) for c in places for i in c.instructions if i.opcode in _MASKED)
    return tuple(m for m in found if m is not None)


def _recognise(value: Instruction) -> MaskedRows | None:
    if len(value.shape.dimensions) < 3:
        return None
    operands = value.operands[:2] if value.opcode == "select" else value.operands
    for mask, rows in ((operands[0], operands[-1]), (operands[-1], operands[0])):
        groups = _broadcast_over(rows)
        if groups is None or not _compares_numbers(mask):
            continue
        matmul = _matmul_behind(value)
        if matmul is not None:
            return MaskedRows(instruction=_standing(value), value=value, groups=groups, matmul=matmul)
    return None


def _broadcast_over(rows: Instruction) -> int | None:
    """The length of the one dimension that a broadcast of rows [.., rows, columns] adds; None where it is no such."""
    for _ in range(_DEEPEST):
        if rows.opcode not in REARRANGING or not rows.operands:
            break
        rows = rows.operands[0]
    if rows.opcode != "broadcast" or len(rows.dimensions) < 2 or min(rows.operands[0].shape.dimensions) < 2:
        return None
    added = [d for i, d in enumerate(rows.shape.dimensions) if i not in rows.dimensions and d > 1]
    return added[0] if len(added) == 1 else None


def _compares_numbers(mask: Instruction, depth: int = 0) -> bool:
    """Whether a mask is made by comparing something with the numbers of rows or groups."""
    if mask.opcode == "compare":
        return any(_is_iota(o) for o in mask.operands)
    if depth > _DEEPEST:
        return False
    if mask.opcode in _MASKING:
        return any(_compares_numbers(o, depth + 1) for o in mask.operands)
    before = passed_on(mask)
    return before is not None and _compares_numbers(before, depth + 1)


def _is_iota(value: Instruction) -> bool:
    for _ in range(_DEEPEST):
        if value.opcode == "iota":
            return True
        before = value.operands[0] if value.opcode in _MASKING and value.operands else passed_on(value)
        if before is None:
            return False
        value = before
    return False


def _matmul_behind(value: Instruction) -> Instruction | None:
    """The first matmul that takes a value, through changes of layout, type and shape, out of and into fusions."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _DEEPEST:
        current = waiting.pop()
        if current.id in seen:
            continue
        seen.add(current.id)
        if current.is_root and current.computation.is_fusion:
            waiting += current.computation.callers
        for user in current.users:
            if user.opcode in ("dot", "convolution"):
                return user
            if user.opcode in REARRANGING:
                waiting.append(user)
            elif user.opcode == "fusion" and user.called_computations:
                waiting += [user.called_computations[0].parameters[user.operands.index(current)]]
    return None


def _standing(value: Instruction) -> Instruction:
    """The outermost fusion around an instruction, or itself."""
    current = value
    while current.computation.is_fusion and len(current.computation.callers) == 1:
        current = current.computation.callers[0]
    return current
