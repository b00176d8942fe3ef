"""Grouped matmuls for GPUs in Pallas, lowered through Triton.

One program computes one block of the output. Every row belongs to a group, counting the rows before and after
the groups held here as two more: those write zeros. Where groups share a row block each program stores its own
rows under a mask, so none waits for another. Rows of other groups are masked when they are loaded, so a NaN
there is never seen. Sums are in float32, rounded once.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from hloscope_kernels.ragged_dot.bounds import visits
from hloscope_kernels.varying import output, varying_alike

# The published blocks: 128 rows, 64 columns, 64 of the contracted width.
ROWS, COLUMNS, INNER = 128, 64, 64
_WARPS, _STAGES = 4, 3


def dot(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    transposed: bool,
    out_dtype: Any,
    precision: Any = None,
    interpret: bool = False,
) -> jax.Array:
    """`[m, k]` times the groups of `[g, k, n]` (`[g, n, k]` when transposed, read in place): `[m, n]`."""
    lhs, rhs, bounds = varying_alike(lhs, rhs, bounds)
    m, n = lhs.shape[0], rhs.shape[1 if transposed else 2]
    groups, column_blocks = rhs.shape[0], pl.cdiv(n, COLUMNS)
    steps = pl.cdiv(m, ROWS) + groups + 1
    edges = jnp.concatenate([jnp.zeros(1, jnp.int32), bounds, jnp.full(1, m, jnp.int32)])
    seen = visits(edges, tile_rows=ROWS, steps=steps, visit_empty=False)
    call = _call(
        partial(_dot_kernel, column_blocks=column_blocks, transposed=transposed, precision=precision),
        grid=steps * column_blocks,
        out_shape=output((m, n), out_dtype, like=lhs),
        flops=2 * m * lhs.shape[1] * n,
        interpret=interpret,
        name="ragged_dot_transposed" if transposed else "ragged_dot",
    )
    return call(lhs, rhs, seen.group, seen.tile, edges)


def contraction(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    out_dtype: Any,
    precision: Any = None,
    interpret: bool = False,
) -> jax.Array:
    """`[m, p]` and `[m, q]` contracted over each group's rows: `[g, p, q]`, zeros where a group is empty."""
    lhs, rhs, bounds = varying_alike(lhs, rhs, bounds)
    (m, p), q, groups = lhs.shape, rhs.shape[1], bounds.shape[0] - 1
    blocks = pl.cdiv(p, ROWS), pl.cdiv(q, COLUMNS)
    call = _call(
        partial(_contraction_kernel, blocks=blocks, precision=precision),
        grid=groups * blocks[0] * blocks[1],
        out_shape=output((groups, p, q), out_dtype, like=lhs),
        flops=2 * m * p * q,
        interpret=interpret,
        name="ragged_contraction",
    )
    return call(lhs, rhs, bounds)


def _dot_kernel(
    lhs: Any,
    rhs: Any,
    group: Any,
    tile: Any,
    edges: Any,
    out: Any,
    *,
    column_blocks: int,
    transposed: bool,
    precision: Any,
) -> None:
    program = pl.program_id(0)
    step, first_column = program // column_blocks, program % column_blocks * COLUMNS
    here, first_row = group[step], tile[step] * ROWS
    mine = _between(first_row, ROWS, edges[here], edges[here + 1])[:, None]
    (k, n), groups = (lhs.shape[1], out.shape[1]), rhs.shape[0]
    columns = _between(first_column, COLUMNS, 0, n)
    at_rows, at_columns = pl.ds(first_row, ROWS), pl.ds(first_column, COLUMNS)
    weight = jnp.clip(here - 1, 0, groups - 1)

    def add(i: Any, total: jax.Array) -> jax.Array:
        inner, at_inner = _between(i * INNER, INNER, 0, k), pl.ds(i * INNER, INNER)
        x = triton.load(lhs.at[at_rows, at_inner], mask=mine & inner[None, :], other=0)
        if transposed:
            w = triton.load(
                rhs.at[weight, at_columns, at_inner], mask=columns[:, None] & inner[None, :], other=0
            )
        else:
            w = triton.load(
                rhs.at[weight, at_inner, at_columns], mask=inner[:, None] & columns[None, :], other=0
            )
        return total + _matmul(x, w, ((1,), (1 if transposed else 0,)), precision)

    dead = (here == 0) | (here == groups + 1)
    # An explicit int32: Triton refuses a loop whose bounds differ in type.
    blocks = jnp.where(dead, jnp.int32(0), jnp.int32(pl.cdiv(k, INNER)))
    total = _sum_up(jnp.int32(0), blocks, add)
    triton.store(out.at[at_rows, at_columns], total.astype(out.dtype), mask=mine & columns[None, :])


def _contraction_kernel(
    lhs: Any, rhs: Any, bounds: Any, out: Any, *, blocks: tuple[int, int], precision: Any
) -> None:
    program = pl.program_id(0)
    group, block = program // (blocks[0] * blocks[1]), program % (blocks[0] * blocks[1])
    first_p, first_q = block // blocks[1] * ROWS, block % blocks[1] * COLUMNS
    start, end = bounds[group], bounds[group + 1]
    ps, qs = _between(first_p, ROWS, 0, lhs.shape[1]), _between(first_q, COLUMNS, 0, rhs.shape[1])

    def add(i: Any, total: jax.Array) -> jax.Array:
        first_row = start + i * INNER
        rows = _between(first_row, INNER, start, end)[:, None]
        at_rows = pl.ds(first_row, INNER)
        x = triton.load(lhs.at[at_rows, pl.ds(first_p, ROWS)], mask=rows & ps[None, :], other=0)
        y = triton.load(rhs.at[at_rows, pl.ds(first_q, COLUMNS)], mask=rows & qs[None, :], other=0)
        return total + _matmul(x, y, ((0,), (0,)), precision)

    total = _sum_up(0, pl.cdiv(end - start, INNER), add)
    triton.store(
        out.at[group, pl.ds(first_p, ROWS), pl.ds(first_q, COLUMNS)],
        total.astype(out.dtype),
        mask=ps[:, None] & qs[None, :],
    )


def _sum_up(start: Any, end: Any, add: Callable[[Any, jax.Array], jax.Array]) -> jax.Array:
    return cast("jax.Array", lax.fori_loop(start, end, add, jnp.zeros((ROWS, COLUMNS), jnp.float32)))


def _matmul(x: jax.Array, y: jax.Array, contract: tuple[tuple[int], tuple[int]], precision: Any) -> jax.Array:
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return lax.dot_general(
        x.astype(dtype),
        y.astype(dtype),
        (contract, ((), ())),
        precision=precision,
        preferred_element_type=jnp.float32,
    )


def _between(first: Any, count: int, start: Any, end: Any) -> jax.Array:
    at = first + jnp.arange(count, dtype=jnp.int32)
    return (at >= start) & (at < end)


def _call(
    kernel: Callable[..., None],
    *,
    grid: int,
    out_shape: jax.ShapeDtypeStruct,
    flops: int,
    interpret: bool,
    name: str,
) -> Callable[..., jax.Array]:
    return pl.pallas_call(
        kernel,
        grid=(grid,),
        out_shape=out_shape,
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        cost_estimate=pl.CostEstimate(flops=flops, bytes_accessed=0, transcendentals=0),
        interpret=interpret,
        name=name,
    )
