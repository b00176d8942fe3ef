"""Grouped matmuls for TPU in Pallas.

The grid runs over the visits of groups to row tiles (`bounds.visits`): a tile that two groups share is visited
twice, a tile without rows of a group held here once, to be zeroed, and then neither lhs nor weights are fetched.
The output tile stays in VMEM from one visit to the next, so the visit dimension must run in order on one core
(`arbitrary`); columns of the output may be split over cores (`parallel`). Rows are kept apart by select, never by
multiplying, so a NaN in a row that no group owns reaches no result. Sums are in float32, rounded once.

Within a step a loop may go over parts of the product (`Tiles.part`): smaller parts keep the sums in registers,
larger ones keep the matrix unit busier between the parts. `tiles.toml` has what was found best where.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.chip import V6E, tpu_chip
from hloscope_kernels.ragged_dot.bounds import visits
from hloscope_kernels.ragged_dot.tiles import (
    ElementBytes,
    Tiles,
    contraction_bytes,
    contraction_tiles,
    dot_bytes,
    dot_tiles,
)
from hloscope_kernels.varying import output, varying_alike

Interpret = bool | pltpu.InterpretParams


def dot(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    transposed: bool,
    out_dtype: Any,
    precision: Any = None,
    interpret: Interpret = False,
    tiles: Tiles | None = None,
) -> jax.Array:
    """`[m, k]` times the groups of `[g, k, n]` (`[g, n, k]` when transposed, read in place): `[m, n]`."""
    lhs, rhs, bounds = varying_alike(lhs, rhs, bounds)
    m, k = lhs.shape
    groups, n = rhs.shape[0], rhs.shape[1 if transposed else 2]
    element = _element_bytes(lhs, rhs, out_dtype)
    tiles = tiles or dot_tiles(
        tpu_chip() or V6E, element, m=m, k=k, n=n, groups=groups, transposed=transposed
    )
    grid = (pl.cdiv(n, tiles.outer), pl.cdiv(m, tiles.rows) + groups + 1, pl.cdiv(k, tiles.inner))
    windows = _dot_windows(tiles, grid[2], transposed)
    call = pl.pallas_call(
        partial(
            _dot_kernel,
            k=k,
            part=tiles.part or tiles.outer,
            transposed=transposed,
            precision=precision,
            merge=_merge_dtype(out_dtype),
        ),
        out_shape=output((m, n), out_dtype, like=lhs),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=grid,
            in_specs=windows[:2],
            out_specs=windows[2],
            scratch_shapes=[pltpu.VMEM((tiles.rows, tiles.outer), jnp.float32)] if grid[2] > 1 else [],
        ),
        compiler_params=_params(("parallel", "arbitrary", "arbitrary"), dot_bytes(tiles, element)),
        cost_estimate=_cost(lhs, rhs, m * n * element.out, flops=2 * m * k * n),
        interpret=interpret,
        name="ragged_dot_transposed" if transposed else "ragged_dot",
    )
    return call(*_dot_steps(bounds, m, tiles.rows, grid[1]), lhs, rhs)


def contraction(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    out_dtype: Any,
    precision: Any = None,
    interpret: Interpret = False,
    tiles: Tiles | None = None,
) -> jax.Array:
    """`[m, p]` and `[m, q]` contracted over each group's rows: `[g, p, q]`, zeros where a group is empty."""
    lhs, rhs, bounds = varying_alike(lhs, rhs, bounds)
    (m, p), q, groups = lhs.shape, rhs.shape[1], bounds.shape[0] - 1
    element = _element_bytes(lhs, rhs, out_dtype)
    tiles = tiles or contraction_tiles(tpu_chip() or V6E, element, m=m, p=p, q=q)
    grid = (pl.cdiv(p, tiles.inner), pl.cdiv(q, tiles.outer), pl.cdiv(m, tiles.rows) + groups - 1)
    windows = _contraction_windows(tiles)
    call = pl.pallas_call(
        partial(_contraction_kernel, precision=precision),
        out_shape=output((groups, p, q), out_dtype, like=lhs),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=grid,
            in_specs=windows[:2],
            out_specs=windows[2],
            scratch_shapes=[pltpu.VMEM((tiles.inner, tiles.outer), jnp.float32)],
        ),
        compiler_params=_params(("parallel", "parallel", "arbitrary"), contraction_bytes(tiles, element)),
        cost_estimate=_cost(lhs, rhs, groups * p * q * element.out, flops=2 * m * p * q),
        interpret=interpret,
        name="ragged_contraction",
    )
    seen = visits(bounds, tile_rows=tiles.rows, steps=grid[2], visit_empty=True)
    return call(seen.group, seen.tile, bounds, seen.real[None], lhs, rhs)


def _dot_steps(bounds: jax.Array, m: int, tile_rows: int, steps: int) -> tuple[jax.Array, ...]:
    """What the dot kernel prefetches: group, tile, lhs tile and weight of each step, then edges and count.

    The rows before and after the groups held here are groups 0 and g + 1, which only write zeros. They name
    the lhs tile and the weight that a neighbouring step holds anyway, so that nothing is fetched for them.
    """
    groups = bounds.shape[0] - 1
    edges = jnp.concatenate([jnp.zeros(1, jnp.int32), bounds, jnp.full(1, m, jnp.int32)])
    seen = visits(edges, tile_rows=tile_rows, steps=steps, visit_empty=False)
    first_tile, last_tile = bounds[0] // tile_rows, jnp.maximum(bounds[-1] - 1, 0) // tile_rows
    lhs_tile = jnp.clip(seen.tile, jnp.minimum(first_tile, last_tile), last_tile)
    held = jnp.where(bounds[1:] > bounds[:-1], jnp.arange(groups, dtype=jnp.int32), -1)
    last_group = jnp.maximum(jnp.max(held), 0)
    first_group = jnp.min(jnp.where(held < 0, last_group, held))
    weight = jnp.clip(seen.group - 1, first_group, last_group)
    return seen.group, seen.tile, lhs_tile, weight, jnp.append(edges, seen.real)


def _dot_windows(tiles: Tiles, k_tiles: int, transposed: bool) -> list[pl.BlockSpec]:
    """Where lhs, rhs and the output are at grid point (j, s, i): column tile, step, k tile."""

    def k_tile(i: Any, group: Any, edges: Any) -> Any:
        if k_tiles == 1:
            return 0
        return jnp.where(group == 0, 0, jnp.where(group == edges.shape[0] - 3, k_tiles - 1, i))

    def lhs(j: Any, s: Any, i: Any, group: Any, tile: Any, lhs_tile: Any, weight: Any, edges: Any) -> Any:
        return lhs_tile[s], k_tile(i, group[s], edges)

    def rhs(j: Any, s: Any, i: Any, group: Any, tile: Any, lhs_tile: Any, weight: Any, edges: Any) -> Any:
        k = k_tile(i, group[s], edges)
        return (weight[s], j, k) if transposed else (weight[s], k, j)

    def out(j: Any, s: Any, i: Any, group: Any, tile: Any, lhs_tile: Any, weight: Any, edges: Any) -> Any:
        return tile[s], j

    weight_tile = (tiles.outer, tiles.inner) if transposed else (tiles.inner, tiles.outer)
    return [
        pl.BlockSpec((tiles.rows, tiles.inner), lhs),
        pl.BlockSpec((None, *weight_tile), rhs),
        pl.BlockSpec((tiles.rows, tiles.outer), out),
    ]


def _contraction_windows(tiles: Tiles) -> list[pl.BlockSpec]:
    """Where lhs, rhs and the output are at grid point (i, j, s): both column tiles, step."""

    def lhs(i: Any, j: Any, s: Any, group: Any, tile: Any, edges: Any, count: Any) -> Any:
        return tile[s], i

    def rhs(i: Any, j: Any, s: Any, group: Any, tile: Any, edges: Any, count: Any) -> Any:
        return tile[s], j

    def out(i: Any, j: Any, s: Any, group: Any, tile: Any, edges: Any, count: Any) -> Any:
        return group[s], i, j

    return [
        pl.BlockSpec((tiles.rows, tiles.inner), lhs),
        pl.BlockSpec((tiles.rows, tiles.outer), rhs),
        pl.BlockSpec((None, tiles.inner, tiles.outer), out),
    ]


def _dot_kernel(
    group: Any,
    tile: Any,
    lhs_tile: Any,
    weight: Any,
    edges: Any,
    lhs: Any,
    rhs: Any,
    out: Any,
    *sums: Any,
    k: int,
    part: int,
    transposed: bool,
    precision: Any,
    merge: Any,
) -> None:
    del lhs_tile, weight
    s, i, k_tiles = pl.program_id(1), pl.program_id(2), pl.num_programs(2)
    last_group = edges.shape[0] - 3
    real = s < edges[last_group + 2]
    dead = (group[s] == 0) | (group[s] == last_group)
    mine = partial(
        _rows_between, first=tile[s] * out.shape[0], start=edges[group[s]], end=edges[group[s] + 1]
    )

    def keep(columns: Any, value: jax.Array) -> None:
        before = out[:, columns].astype(merge)
        out[:, columns] = jnp.where(mine(value.shape), value.astype(merge), before).astype(out.dtype)

    @pl.when(real & dead & (i == k_tiles - 1))
    def _() -> None:
        keep(slice(None), jnp.zeros(out.shape, merge))

    def multiply(columns: Any) -> None:
        weights = rhs[columns, :] if transposed else rhs[:, columns]
        x, w = _cut(lhs[...], weights, i, k=k, transposed=transposed)
        contract = ((1,), (1 if transposed else 0,))
        product = lax.dot_general(
            x, w, (contract, ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        if not sums:
            keep(columns, product)
            return
        (total,) = sums
        total[:, columns] = jnp.where(i == 0, product, total[:, columns] + product)

        @pl.when(i == k_tiles - 1)
        def _() -> None:
            keep(columns, total[:, columns])

    @pl.when(real & ~dead)
    def _() -> None:
        _for_each_part(out.shape[1], part, multiply)


def _contraction_kernel(
    group: Any, tile: Any, edges: Any, count: Any, lhs: Any, rhs: Any, out: Any, total: Any, *, precision: Any
) -> None:
    s, steps = pl.program_id(2), pl.num_programs(2)
    start, end = edges[group[s]], edges[group[s] + 1]

    @pl.when((s == 0) | (group[jnp.maximum(s - 1, 0)] != group[s]))
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    @pl.when((s < count[0]) & (start < end))
    def _() -> None:
        x, y = _promote(lhs[...], rhs[...])
        row = tile[s] * x.shape[0]
        x = jnp.where(_rows_between(x.shape, row, start, end), x, jnp.zeros_like(x))
        y = jnp.where(_rows_between(y.shape, row, start, end), y, jnp.zeros_like(y))
        total[...] += lax.dot_general(
            x, y, (((0,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )

    @pl.when((s == steps - 1) | (group[jnp.minimum(s + 1, steps - 1)] != group[s]))
    def _() -> None:
        out[...] = total[...].astype(out.dtype)


def _for_each_part(width: int, part: int, body: Callable[[Any], None]) -> None:
    """`body` with the columns of each part, in a loop; `part` divides the width."""
    if part >= width:
        body(slice(None))
        return

    def step(index: Any, carry: Any) -> Any:
        body(pl.ds(pl.multiple_of(index * part, part), part))
        return carry

    lax.fori_loop(0, width // part, step, ())


def _cut(x: jax.Array, w: jax.Array, i: Any, *, k: int, transposed: bool) -> tuple[jax.Array, jax.Array]:
    """Both operands in one dtype, without what the last k tile reads beyond k."""
    x, w = _promote(x, w)
    tile = x.shape[1]
    if k % tile == 0:
        return x, w
    left = k - i * tile
    x = jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, 1) < left, x, jnp.zeros_like(x))
    inner = lax.broadcasted_iota(jnp.int32, w.shape, 1 if transposed else 0)
    return x, jnp.where(inner < left, w, jnp.zeros_like(w))


def _promote(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return x.astype(dtype), y.astype(dtype)


def _rows_between(shape: tuple[int, ...], first: Any, start: Any, end: Any) -> jax.Array:
    row = first + lax.broadcasted_iota(jnp.int32, shape, 0)
    return (row >= start) & (row < end)


def _merge_dtype(out_dtype: Any) -> Any:
    """What new rows are put among the old ones in: 16-bit values take fewer instructions only from v6e on."""
    return out_dtype if (tpu_chip() or V6E).generation >= 6 else jnp.float32


def _element_bytes(lhs: jax.Array, rhs: jax.Array, out_dtype: Any) -> ElementBytes:
    return ElementBytes(lhs=lhs.dtype.itemsize, rhs=rhs.dtype.itemsize, out=jnp.dtype(out_dtype).itemsize)


def _params(semantics: tuple[Any, ...], vmem_bytes: int) -> pltpu.CompilerParams:
    limit = (tpu_chip() or V6E).vmem_limit(vmem_bytes)
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit)


def _cost(lhs: jax.Array, rhs: jax.Array, out_bytes: int, *, flops: int) -> pl.CostEstimate:
    read = lhs.size * lhs.dtype.itemsize + rhs.size * rhs.dtype.itemsize
    return pl.CostEstimate(flops=flops, bytes_accessed=read + out_bytes, transcendentals=0)
