"""Attention kernels, told by their operands: queries, keys and values that fit each other."""

from __future__ import annotations

from hloscope.hlo import Instruction, Shape


def is_attention(call: Instruction) -> bool:
    """Whether a custom call is the forward pass of attention: it takes queries [..., s, d], keys [..., t, d] and values
    [..., t, e] and gives [..., s, e], with whatever else beside (masks, row sums).

    Dimensions before the last two are batches and heads; keys and values may have fewer heads than queries.
    """
    if call.opcode != "custom-call":
        return False
    arrays = [o.shape for o in call.operands if _is_data(o.shape)]
    results = [leaf for leaf in call.shape.parts if _is_data(leaf)]
    triples = zip(arrays, arrays[1:], arrays[2:], strict=False)
    return any(_fits(q, k, v, out) for q, k, v in triples for out in results)


def _fits(q: Shape, k: Shape, v: Shape, out: Shape) -> bool:
    if len({len(q.dimensions), len(k.dimensions), len(v.dimensions), len(out.dimensions)}) != 1:
        return False
    (*heads, s, d), (*k_heads, t, kd), (*v_heads, vt, e) = q.dimensions, k.dimensions, v.dimensions
    shared = all(h % kh == 0 for h, kh in zip(heads, k_heads, strict=True))
    return k_heads == v_heads and shared and (kd, vt) == (d, t) and out.dimensions == (*heads, s, e)


def _is_data(shape: Shape) -> bool:
    return (
        len(shape.dimensions) >= 3
        and shape.element_type.startswith(("bf", "f"))
        and min(shape.dimensions) > 0
    )
