"""`unsort_bwd_rows` for TPU: one pass over both buffers, numbers per row kept lane-dense.

In HBM weights and dots are lane-dense (see `lanes.py`). The transposes to and from columns happen once
per block of rows: in between, the columns and the partial sums (one per lane) stay in VMEM. Where rows
are too long for one block, the partial sums pass from one column block to the next, which is right
because these run in order on one core.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import LANES, dense_window, lane_dense, rows_to_columns, sums_to_rows
from hloscope_kernels.row_grid import RowGrid, zero_tail
from hloscope_kernels.unsort_bwd_rows.config import Blocks, row_bytes
from hloscope_kernels.varying import output, varying_alike

_TAIL_TILE = 16
# Columns at once: of bfloat16 a whole register holds eight rows of these.
_TILE_COLUMNS = 2 * LANES


def unsort_bwd_rows_kernel(
    gradient: jax.Array,
    y: jax.Array,
    weights: jax.Array,
    limit: jax.Array,
    *,
    blocks: Blocks,
    chip: Chip,
    donate: bool = False,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """(weighted gradient [rows, hidden], row dots f32[rows]) in the blocks below `limit`."""
    rows, hidden = gradient.shape
    limit, gradient, y, weights = varying_alike(limit, gradient, y, weights)
    grid = RowGrid(
        rows=rows,
        block_rows=blocks.rows,
        column_blocks=pl.cdiv(hidden, blocks.columns),
        cores=chip.cores,
    )
    dense = lane_dense(weights.astype(jnp.float32), grid)

    matrix = pl.BlockSpec((blocks.rows, blocks.columns), grid.block_index)
    vector = dense_window(grid)
    windows = blocks.rows * row_bytes(blocks.columns, gradient.dtype.itemsize)
    weighted, dots = pl.pallas_call(
        partial(_body, grid=grid, hidden=hidden, tile_rows=blocks.tile_rows),
        out_shape=[
            output(gradient.shape, gradient.dtype, like=gradient),
            output(dense.shape, jnp.float32, like=gradient),
        ],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid.grid(limit),
            in_specs=[vector, matrix, matrix],
            out_specs=[matrix, vector],
            scratch_shapes=[pltpu.VMEM((blocks.rows, LANES), jnp.float32)] * 2,
        ),
        input_output_aliases={2: 0} if donate else {},
        # For the scheduler: the whole buffer, as the limit is not known when it decides.
        cost_estimate=pl.CostEstimate(
            flops=11 * rows * hidden // 2,  # two multiplications, a sum, conversions
            transcendentals=0,
            bytes_accessed=3 * rows * hidden * gradient.dtype.itemsize,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=grid.dimension_semantics, vmem_limit_bytes=chip.vmem_limit(windows)
        ),
        name="unsort_bwd_rows",
        interpret=interpret,
    )(grid.prefetched(limit), dense, gradient, y)
    return weighted, dots.reshape(-1)[:rows]


def _body(
    prefetched: Any,
    weights: Any,
    gradient: Any,
    y: Any,
    weighted: Any,
    dots: Any,
    weight_columns: Any,
    partial_dots: Any,
    *,
    grid: RowGrid,
    hidden: int,
    tile_rows: int,
) -> None:
    block_rows, block_columns = gradient.shape
    column_block = pl.program_id(2)
    # Columns that the last block has beyond the buffer hold anything: they must not enter a dot.
    valid_columns = None if hidden % block_columns == 0 else hidden - column_block * block_columns

    def tile(index: Any, carry: Any) -> Any:
        rows = pl.ds(pl.multiple_of(index * tile_rows, tile_rows), tile_rows)
        weight = weight_columns[rows, :]
        products: list[jax.Array] = []
        for start in range(0, block_columns, _TILE_COLUMNS):
            columns = slice(start, min(start + _TILE_COLUMNS, block_columns))
            groups = range(0, columns.stop - start, LANES)
            wide = gradient[rows, columns].astype(jnp.float32)
            spread = jnp.concatenate([weight for _ in groups], axis=1)
            weighted[rows, columns] = (wide * spread).astype(weighted.dtype)
            product = wide * y[rows, columns].astype(jnp.float32)
            product = _select_columns(product, start, valid_columns)
            products += [product[:, group : group + LANES] for group in groups]
        dot = reduce(jnp.add, products)
        partial_dots[rows, :] = dot if grid.column_blocks == 1 else partial_dots[rows, :] + dot
        return carry

    def begin() -> None:
        rows_to_columns(weights, weight_columns)
        if grid.column_blocks > 1:
            partial_dots[...] = jnp.zeros(partial_dots.shape, jnp.float32)

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row
        _when(grid, column_block == 0, begin)
        lax.fori_loop(0, block_rows // tile_rows, tile, ())
        zero_tail(weighted, valid_rows, _TAIL_TILE)
        last = column_block == grid.column_blocks - 1
        _when(grid, last, lambda: sums_to_rows(partial_dots, dots, valid_rows))

    grid.visit(prefetched, block)


def _when(grid: RowGrid, condition: Any, body: Callable[[], None]) -> None:
    """`pl.when`, but for the branch where all columns are one block, which is the first and the last."""
    if grid.column_blocks == 1:
        body()
    else:
        pl.when(condition)(body)


def _select_columns(product: jax.Array, start: int, valid_columns: Any) -> jax.Array:
    if valid_columns is None:
        return product
    column = start + lax.broadcasted_iota(jnp.int32, product.shape, 1)
    return jnp.where(column < valid_columns, product, 0.0)
