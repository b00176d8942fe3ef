"""Matrix operations of dots and convolutions, by their dimension numbers, and how many passes the units make.

On a TPU most dots are convolutions after optimization: batch dimensions have become spatial ones, with padding or
dilation that leaves one element of the kernel for each output. Positions that fall beside the input are no work.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.hlo import Instruction

# Pieces of bfloat16 that an operand of 32 bits is split into, by `operand_precision`.
_PIECES = {0: 1, 1: 2, 2: 3}
# No real window is longer; counting its positions would take for ever.
_LARGEST_WINDOW = 1 << 20
# Products of pieces that are kept of two split operands: the smallest ones are below the result's last bit.
_PRODUCTS = {(2, 2): 3, (3, 3): 6}


def matrix_flops(instruction: Instruction) -> int | None:
    """Operations of a dot or convolution, two for a multiplication with its addition; None where its dimension
    numbers do not fit its operands.

    A dot of [b,m,k] and [b,k,n] has 2 b m n k. Counted from the dimension numbers, so padding and dilation
    of a convolution are no work.
    """
    try:
        return _dot_flops(instruction) if instruction.opcode == "dot" else _convolution_flops(instruction)
    except IndexError:
        return None  # damaged


def rate_of(instruction: Instruction) -> tuple[str, int]:
    """Which of a chip's matrix rates a dot or convolution runs at, `bf16`, `int8` or `fp8`, and in how many
    passes: operands of 32 bits are split into pieces of bfloat16 where `operand_precision` asks for it."""
    types = [o.shape.element_type for o in instruction.operands[:2]]
    if all(t in ("s8", "u8", "s4", "u4") for t in types):
        return "int8", 1
    if all(t.startswith("f8") for t in types):
        return "fp8", 1
    asked = list(instruction.proto.precision_config.operand_precision) or [0, 0]
    pieces = [_PIECES.get(p, 1) if t in ("f32", "f64") else 1 for t, p in zip(types, asked, strict=False)]
    first, second = (*pieces, 1, 1)[:2]
    return "bf16", _PRODUCTS.get((first, second), first * second)


def _dot_flops(dot: Instruction) -> int:
    lhs = dot.operands[0].shape.dimensions
    contracted = (lhs[d] for d in dot.proto.dot_dimension_numbers.lhs_contracting_dimensions)
    return 2 * dot.shape.elements * math.prod(contracted)


def _convolution_flops(convolution: Instruction) -> int | None:
    proto = convolution.proto
    numbers, windows = proto.convolution_dimension_numbers, proto.window.dimensions
    lhs, rhs = (convolution.operands[i].shape.dimensions for i in range(2))
    out = convolution.shape.dimensions
    if any(w.size > _LARGEST_WINDOW for w in windows):
        return None
    spatial = zip(
        windows,
        (lhs[d] for d in numbers.input_spatial_dimensions),
        (out[d] for d in numbers.output_spatial_dimensions),
        strict=False,
    )
    met = math.prod(
        positions(w.size, w.stride, w.padding_low, w.window_dilation, w.base_dilation, n_in, n_out)
        for w, n_in, n_out in spatial
    )
    features = rhs[numbers.kernel_input_feature_dimension] * out[numbers.output_feature_dimension]
    batch = lhs[numbers.input_batch_dimension] // max(1, proto.batch_group_count)
    return 2 * met * features * batch


@lru_cache(maxsize=4096)
def positions(size: int, stride: int, low: int, dilation: int, base: int, n_in: int, n_out: int) -> int:
    """Pairs of a kernel element and an output that meet an input element: neither padding nor a hole of the
    base dilation. A reversed kernel has as many."""
    stride, dilation, base = max(stride, 1), max(dilation, 1), max(base, 1)
    return sum(_outputs(k * dilation - low, stride, base, n_in, n_out) for k in range(size))


def _outputs(offset: int, stride: int, base: int, n_in: int, n_out: int) -> int:
    """How many o in [0, n_out) have `o * stride + offset` = base * i for an i in [0, n_in)."""
    first = max(0, -(offset // stride))  # the least o with o * stride + offset >= 0
    last = min(n_out - 1, ((n_in - 1) * base - offset) // stride)
    if first > last:
        return 0
    common = math.gcd(stride, base)
    if offset % common:
        return 0
    period = base // common
    meets = (-(offset // common) * pow(stride // common, -1, period)) % period if period > 1 else 0
    start = first + (meets - first) % period
    return 0 if start > last else (last - start) // period + 1
