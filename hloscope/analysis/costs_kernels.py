"""What opaque kernels do, as far as their operands tell: grouped matmuls, attention, what a kernel says of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hloscope.analysis.grouped import GroupedMatmul
from hloscope.analysis.traffic import hbm_bytes

if TYPE_CHECKING:
    from hloscope.hlo import Instruction, Shape


# Operations for each byte: elementwise work has a few, products of matrices have hundreds.
_MATRIX_INTENSITY = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """What one execution of a kernel does. None is unknown.

    `bytes` are HBM bytes; `limit` is "upper" where the figures are those of the most that it may do.
    """

    bytes: int | None
    flops: int | None
    arithmetic: int | None = None  # vector operations
    transcendentals: int | None = None
    rate: str = "bf16"
    limit: str | None = None
    source: str


def grouped_work(matmul: GroupedMatmul, fraction: float | None) -> KernelWork:
    """A grouped matmul over the share of its rows that hold tokens; over all of them where that is unknown,
    as an upper limit. Its rows' bytes shrink with the share, its weights' do not."""
    call = matmul.instruction
    lhs, out = matmul.buffers[0].shape, call.shape
    k, n = (lhs.dimensions[1], out.dimensions[1]) if matmul.form == "gmm" else out.dimensions[1:3]
    valid = 1.0 if fraction is None else fraction
    rows = [b.shape for b in matmul.buffers] + ([out] if matmul.form == "gmm" else [])
    row_bytes = sum(s.padded_bytes for s in rows if s.memory_space == 0)
    moved = hbm_bytes(call)
    told = _told(call, "bytes_accessed")
    if moved is not None:
        # The kernel's own figure has the tiles in it that it fetches again; weights are read once at least.
        weights = max(0, moved - row_bytes)
        moved = weights + round(max(row_bytes, (told or 0) - weights) * valid)
    return KernelWork(
        bytes=moved,
        flops=round(2 * matmul.rows * k * n * valid),
        transcendentals=0,
        rate=_rate([b.shape for b in matmul.buffers]),
        limit="upper" if fraction is None else None,
        source="grouped matmul, all rows" if fraction is None else "grouped matmul, valid rows",
    )


def has_row_limit(call: Instruction, rows: int) -> bool:
    """Whether a kernel may stop at a row: it takes an integer scalar and arrays of so many rows."""
    scalar = any(o.shape.element_type == "s32" and o.shape.elements == 1 for o in call.operands)
    return scalar and any(_has_rows(o.shape, rows) for o in call.operands)


def limited_work(call: Instruction, rows: int, fraction: float | None) -> KernelWork:
    """A kernel that streams the share of its rows that hold tokens; all of them, as an upper limit, where that
    is unknown."""
    valid = 1.0 if fraction is None else fraction
    leaves = [leaf for s in (call.shape, *(o.shape for o in call.operands)) for leaf in s.parts]
    row_bytes = sum(s.padded_bytes for s in leaves if _has_rows(s, rows) and s.memory_space == 0)
    moved = hbm_bytes(call)
    told, transcendentals = _told(call, "flops"), _told(call, "transcendentals")
    # What multiplies matrices does more for each byte.
    is_vector = told is not None and moved is not None and told < _MATRIX_INTENSITY * moved
    return KernelWork(
        bytes=None if moved is None else moved - round(min(row_bytes, moved) * (1 - valid)),
        flops=None,
        arithmetic=round(told * valid) if told is not None and is_vector else None,
        transcendentals=None if transcendentals is None else round(transcendentals * valid),
        limit="upper" if fraction is None else None,
        source="kernel with a row limit, all rows"
        if fraction is None
        else "kernel with a row limit, valid rows",
    )


def _has_rows(shape: Shape, rows: int) -> bool:
    return len(shape.dimensions) == 2 and shape.dimensions[0] == rows


def attention_work(call: Instruction) -> KernelWork | None:
    """A fused attention kernel by its operands q, k and v, or None where it is none.

    q is [..., heads, queries, d], k [..., kv heads, keys, d] and v [..., kv heads, keys, dv]. Counted as if every
    query met every key: a causal or windowed mask skips blocks, which the module does not show.
    """
    wide = [o.shape for o in call.operands if o.shape.element_type in ("bf16", "f16", "f32")]
    wide = [s for s in wide if len(s.dimensions) >= 3]
    if len(wide) < 3:
        return None
    q, k, v = wide[:3]
    if not _are_qkv(q.dimensions, k.dimensions, v.dimensions):
        return None
    *batch, queries, d = q.dimensions
    keys, dv = v.dimensions[-2:]
    products = _attention_products(call.shape, wide[3:], q, k, v)
    if products is None:
        return None
    scores = math.prod(batch) * queries * keys
    with_d, with_dv = products
    return KernelWork(
        bytes=hbm_bytes(call),
        flops=2 * scores * (with_d * d + with_dv * dv),
        transcendentals=scores,
        limit="upper",
        source="attention, no block masked",
    )


def _are_qkv(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
    same = len(q) == len(k) == len(v) and q[-1] == k[-1] and k[:-1] == v[:-1] and q[:-3] == k[:-3]
    return same and k[-3] > 0 and q[-3] % k[-3] == 0 and min(q[-2:]) > 1


def _attention_products(
    result: Shape, others: list[Shape], q: Shape, k: Shape, v: Shape
) -> tuple[int, int] | None:
    """How many products [queries, keys] x d and x dv the kernel makes: q k and p v forwards, and the gradients
    that are among the results backwards."""
    results = [s.dimensions for s in (result.tuple_shapes or (result,))]
    output = (*q.dimensions[:-1], v.dimensions[-1])
    gradient = any(s.dimensions == output and s.element_type == q.element_type for s in others)
    if not gradient:
        return (1, 1) if results[0] == output else None
    # A gradient of q, possibly one for each block of keys; those of k and v come together.
    to_q = any(
        d[-2:] == q.dimensions[-2:] and math.prod(d) % math.prod(q.dimensions) == 0 for d in results[:1]
    )
    to_kv = [d for d in results if d in (k.dimensions, v.dimensions)]
    if len(results) == 1:
        return (2, 1) if to_q else None
    with_q = to_q and len(results) >= 3
    return (2 + with_q, 2) if len(to_kv) >= 2 else None


def told_work(call: Instruction) -> KernelWork | None:
    """What the kernel's author told the compiler; None where nothing was told. A figure of zero was not told."""
    flops, moved = _told(call, "flops"), _told(call, "bytes_accessed")
    if not flops and not moved:
        return None
    return KernelWork(
        bytes=moved or hbm_bytes(call),
        flops=flops,
        transcendentals=_told(call, "transcendentals"),
        source="the kernel's own cost estimate",
    )


def _told(call: Instruction, figure: str) -> int | None:
    """A figure of the kernel's cost estimate, in one execution; None where it has none."""
    estimate: Any = call.backend_config
    for key in ("custom_call_config", "cost_estimate", figure):
        estimate = cast("dict[str, Any]", estimate).get(key) if isinstance(estimate, dict) else None
    text = str(estimate)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 25 else None


def _rate(operands: list[Shape]) -> str:
    """The matrix rate of operands of these types."""
    types = {s.element_type for s in operands}
    if types <= {"s8", "u8"}:
        return "int8"
    return "fp8" if all(t.startswith("f8") for t in types) else "bf16"
