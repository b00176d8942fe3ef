"""Grouped matmuls: XLA's ragged-dot or a Pallas gmm / tgmm, told by what goes in and comes out.

A grouped matmul multiplies rows [m, k] by one of the matrices [groups, k, n], whichever group the row is
in; its transpose contracts two row buffers [m, k] and [m, n] into [groups, k, n]. Beside them it takes
integer vectors that say where groups begin. No name is needed to see that, and none is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.hlo import Instruction, Module, Shape, once_for_each

_CALLS = ("custom-call", "ragged-dot")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMatmul:
    """A grouped matmul of the module.

    `form` is "gmm" for [m, k] x [groups, k, n] -> [m, n], "tgmm" for [m, k] x [m, n] -> [groups, k, n].
    `buffers` are the operands over rows; `sizes` the integer vectors that may tell the groups.
    """

    instruction: Instruction
    form: str
    rows: int
    groups: int
    buffers: tuple[Instruction, ...]
    sizes: tuple[Instruction, ...]
    name: str  # the kernel's name without its number, for people


def grouped_matmuls(module: Module) -> tuple[GroupedMatmul, ...]:
    """Every grouped matmul that the step runs, in module order."""
    calls = (i for c in module.control_computations for i in c.instructions if i.opcode in _CALLS)
    return tuple(g for g in map(_recognise, calls) if g is not None)


def recognise(call: Instruction) -> GroupedMatmul | None:
    """The instruction as a grouped matmul, or None where it is none."""
    return _recognise(call) if call.opcode in _CALLS else None


@once_for_each
def _recognise(call: Instruction) -> GroupedMatmul | None:
    sizes = tuple(o for o in call.operands if _is_integer_vector(o.shape))
    matrices = [o for o in call.operands if _is_float(o.shape) and len(o.shape.dimensions) >= 2]
    if not sizes or len(matrices) < 2 or call.shape.is_tuple or not _is_float(call.shape):
        return None
    found = _as_gmm(call, matrices) or _as_tgmm(call, matrices)
    if found is None:
        return None
    form, rows, groups, buffers = found
    if max(s.shape.dimensions[0] for s in sizes) < groups:
        return None
    name = call.name.rstrip("0123456789").rstrip(".")
    return GroupedMatmul(
        instruction=call, form=form, rows=rows, groups=groups, buffers=buffers, sizes=sizes, name=name
    )


_Found = tuple[str, int, int, tuple[Instruction, ...]]


def _as_gmm(call: Instruction, matrices: list[Instruction]) -> _Found | None:
    out = call.shape.dimensions
    if len(out) != 2:
        return None
    rows, n = out
    for lhs in matrices:
        for rhs in matrices:
            weights = rhs.shape.dimensions
            if len(lhs.shape.dimensions) != 2 or len(weights) != 3 or lhs.shape.dimensions[0] != rows:
                continue
            if _fits(weights[1:], (lhs.shape.dimensions[1], n)):
                return "gmm", rows, weights[0], (lhs,)
    return None


def _as_tgmm(call: Instruction, matrices: list[Instruction]) -> _Found | None:
    out = call.shape.dimensions
    if len(out) != 3:
        return None
    for i, lhs in enumerate(matrices):
        for rhs in matrices[i + 1 :]:
            left, right = lhs.shape.dimensions, rhs.shape.dimensions
            if len(left) != 2 or len(right) != 2:
                continue
            # Some kernels take the left rows transposed.
            rows, k = left if left[0] == right[0] else left[::-1]
            if rows == right[0] and _fits(out[1:], (k, right[1])):
                return "tgmm", rows, out[0], (lhs, rhs)
    return None


def _fits(dims: tuple[int, ...], wanted: tuple[int, int]) -> bool:
    """Whether [a, b] is [k, n] in either order, each possibly padded up to a tile of the kernel."""
    (a, b), (k, n) = dims, wanted
    return (k <= a < 2 * k and n <= b < 2 * n) or (k <= b < 2 * k and n <= a < 2 * n)


def _is_integer_vector(shape: Shape) -> bool:
    return shape.element_type in ("s32", "s64", "u32") and len(shape.dimensions) == 1


def _is_float(shape: Shape) -> bool:
    return shape.element_type.startswith(("bf", "f"))
