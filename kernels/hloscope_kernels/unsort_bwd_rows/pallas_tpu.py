"""`unsort_bwd_rows` for TPU: one pass over both buffers, numbers per row kept lane-dense.

In HBM weights and dots are lane-dense (see `lanes.py`). The transposes to and from columns happen once
per block of rows, not once per block of columns: in between, the columns and the partial sums (one per
lane) stay in VMEM. The partial sums pass from one column block to the next, which is right because
these run in order on one core.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import LANES, rows_to_columns, sums_to_rows
from hloscope_kernels.row_grid import RowGrid, zero_tail
from hloscope_kernels.unsort_bwd_rows.config import Blocks
from hloscope_kernels.varying import output, varying_alike

_TAIL_TILE = 16


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
    dense = _lane_dense(weights.astype(jnp.float32))

    def per_row(core: Any, step: Any, column: Any, prefetched: Any) -> tuple[Any, int]:
        return grid.block_index(core, step, column, prefetched)[0], 0

    matrix = pl.BlockSpec((blocks.rows, blocks.columns), grid.block_index)
    vector = pl.BlockSpec((blocks.rows // LANES, LANES), per_row)
    windows = 2 * blocks.rows * (3 * blocks.columns * gradient.dtype.itemsize + (2 + LANES) * 4)
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
            flops=3 * rows * hidden,
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


def _lane_dense(vector: jax.Array) -> jax.Array:
    """[rows] as [ceil(rows / 128), 128]."""
    return jnp.pad(vector, (0, -vector.size % LANES)).reshape(-1, LANES)


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
        dot = partial_dots[rows, :]
        for start in range(0, block_columns, LANES):
            columns = slice(start, start + LANES)
            wide = gradient[rows, columns].astype(jnp.float32)
            weighted[rows, columns] = (wide * weight).astype(weighted.dtype)
            product = wide * y[rows, columns].astype(jnp.float32)
            dot += _select_columns(product, start, valid_columns)
        partial_dots[rows, :] = dot
        return carry

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row

        @pl.when(column_block == 0)
        def _() -> None:
            rows_to_columns(weights, weight_columns)
            partial_dots[...] = jnp.zeros(partial_dots.shape, jnp.float32)

        lax.fori_loop(0, block_rows // tile_rows, tile, ())
        zero_tail(weighted, valid_rows, _TAIL_TILE)

        @pl.when(column_block == grid.column_blocks - 1)
        def _() -> None:
            sums_to_rows(partial_dots, dots, valid_rows)

    grid.visit(prefetched, block)


def _select_columns(product: jax.Array, start: int, valid_columns: Any) -> jax.Array:
    if valid_columns is None:
        return product
    column = start + lax.broadcasted_iota(jnp.int32, product.shape, 1)
    return jnp.where(column < valid_columns, product, 0.0)
