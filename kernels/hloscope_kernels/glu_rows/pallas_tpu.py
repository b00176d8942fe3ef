"""`glu_rows` and its gradient for TPU: blocks of whole rows, gate and up read in place.

A block holds whole rows of the fused buffer, so that each transfer is one contiguous piece of HBM and
both halves come with it. The block is worked through in tiles that fit the vector registers.
"""

# jax annotates these functions only in part.
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

from hloscope_kernels.chip import Chip
from hloscope_kernels.glu_rows.config import Blocks
from hloscope_kernels.glu_rows.formula import Activation, glu, glu_gradient, slow_part
from hloscope_kernels.row_grid import RowGrid, zero_tail
from hloscope_kernels.varying import output, varying_alike

# Numbers that wait in registers from one tile to the next: 16 of the 64 registers. More would spill.
_MOST_AHEAD = 16 * 1024


def glu_rows_kernel(
    fused: jax.Array,
    limit: jax.Array,
    *,
    activation: Activation,
    blocks: Blocks,
    chip: Chip,
    interpret: bool = False,
) -> jax.Array:
    """act(gate) * up in the blocks below `limit`: [rows, 2 * mlp] to [rows, mlp]."""
    rows, width = fused.shape
    body = partial(_forward, activation=activation, blocks=blocks, dtype=fused.dtype)
    return _call(
        body,
        [fused],
        limit,
        result=(rows, width // 2),
        name=f"glu_rows_{activation}",
        blocks=blocks,
        chip=chip,
        interpret=interpret,
    )


def glu_rows_bwd_kernel(
    fused: jax.Array,
    gradient: jax.Array,
    limit: jax.Array,
    *,
    activation: Activation,
    blocks: Blocks,
    chip: Chip,
    donate: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """[d_gate, d_up] in the blocks below `limit`, in the place of `fused` where it is donated."""
    body = partial(_backward, activation=activation, blocks=blocks, dtype=fused.dtype)
    return _call(
        body,
        [fused, gradient],
        limit,
        result=fused.shape,
        name=f"glu_rows_bwd_{activation}",
        blocks=blocks,
        chip=chip,
        aliases={1: 0} if donate else {},
        interpret=interpret,
    )


def _call(
    body: Callable[..., None],
    operands: list[jax.Array],
    limit: jax.Array,
    *,
    result: tuple[int, ...],
    name: str,
    blocks: Blocks,
    chip: Chip,
    interpret: bool,
    aliases: dict[int, int] | None = None,
) -> jax.Array:
    dtype = operands[0].dtype
    grid = RowGrid(rows=result[0], block_rows=blocks.rows, cores=chip.cores)
    limit, *operands = varying_alike(limit, *operands)

    def window(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((blocks.rows, width), grid.block_index)

    widths = [operand.shape[1] for operand in operands]
    windows = 2 * blocks.rows * (sum(widths) + result[1]) * dtype.itemsize
    return pl.pallas_call(
        partial(body, grid=grid),
        out_shape=output(result, dtype, like=operands[0]),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid.grid(limit),
            in_specs=[window(width) for width in widths],
            out_specs=window(result[1]),
        ),
        input_output_aliases=aliases or {},
        cost_estimate=_cost(grid.rows, sum(widths), result[1], dtype.itemsize),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=grid.dimension_semantics, vmem_limit_bytes=chip.vmem_limit(windows)
        ),
        name=name,
        interpret=interpret,
    )(grid.prefetched(limit), *operands)


def _cost(rows: int, read: int, written: int, itemsize: int) -> pl.CostEstimate:
    """For the scheduler: the whole buffer, as the limit is not known when it decides."""
    return pl.CostEstimate(
        flops=8 * rows * read, transcendentals=rows * read, bytes_accessed=rows * (read + written) * itemsize
    )


def _forward(
    prefetched: Any,
    fused: Any,
    out: Any,
    *,
    activation: Activation,
    blocks: Blocks,
    dtype: Any,
    grid: RowGrid,
) -> None:
    mlp = out.shape[1]

    def tile(rows: Any, start: int, stop: int) -> None:
        gate = fused[rows, start:stop].astype(jnp.float32)
        up = fused[rows, mlp + start : mlp + stop].astype(jnp.float32)
        out[rows, start:stop] = glu(gate, up, activation, dtype).astype(out.dtype)

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row
        _for_each_tile(mlp, blocks, tile)
        zero_tail(out, valid_rows, blocks.tile_rows)

    grid.visit(prefetched, block)


def _backward(
    prefetched: Any,
    fused: Any,
    gradient: Any,
    out: Any,
    *,
    activation: Activation,
    blocks: Blocks,
    dtype: Any,
    grid: RowGrid,
) -> None:
    mlp = gradient.shape[1]
    columns = [(at, min(at + blocks.tile_columns, mlp)) for at in range(0, mlp, blocks.tile_columns)]

    def ahead(rows: Any) -> list[Any]:
        if blocks.tile_rows * mlp > _MOST_AHEAD:
            return [None] * len(columns)
        return [slow_part(fused[rows, start:stop].astype(jnp.float32), activation) for start, stop in columns]

    def tiles(rows: Any, slow: list[Any]) -> None:
        for (start, stop), known in zip(columns, slow, strict=True):
            gate = fused[rows, start:stop].astype(jnp.float32)
            up = fused[rows, mlp + start : mlp + stop].astype(jnp.float32)
            d_glu = gradient[rows, start:stop].astype(jnp.float32)
            d_gate, d_up = glu_gradient(gate, up, d_glu, activation, dtype, known)
            out[rows, start:stop] = d_gate.astype(out.dtype)
            out[rows, mlp + start : mlp + stop] = d_up.astype(out.dtype)

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row
        count = blocks.rows // blocks.tile_rows

        def at(index: Any) -> Any:
            return pl.ds(pl.multiple_of(index * blocks.tile_rows, blocks.tile_rows), blocks.tile_rows)

        def step(index: Any, slow: list[Any]) -> list[Any]:
            # The next tile's exponentials run while this one is multiplied; the last one's are computed twice.
            following = ahead(at(jnp.minimum(index + 1, count - 1)))
            tiles(at(index), slow)
            return following

        lax.fori_loop(0, count, step, ahead(at(0)))
        zero_tail(out, valid_rows, blocks.tile_rows)

    grid.visit(prefetched, block)


def _for_each_tile(width: int, blocks: Blocks, tile: Callable[[Any, int, int], None]) -> None:
    """Loop over tiles of rows; the tiles of columns of one such loop step stand side by side in the code."""

    def step(index: Any, carry: Any) -> Any:
        rows = pl.ds(pl.multiple_of(index * blocks.tile_rows, blocks.tile_rows), blocks.tile_rows)
        for start in range(0, width, blocks.tile_columns):
            tile(rows, start, min(start + blocks.tile_columns, width))
        return carry

    lax.fori_loop(0, blocks.rows // blocks.tile_rows, step, ())
