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
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.chip import Chip
from hloscope_kernels.glu_rows.config import Blocks
from hloscope_kernels.glu_rows.formula import (
    Activation,
    glu,
    minus_gelu_glu_gradient,
    minus_sigmoid,
    minus_silu_glu_gradient,
    slope,
    unsigned_zero,
)
from hloscope_kernels.glu_rows.in_turns import buffers, in_turns
from hloscope_kernels.row_grid import RowGrid, zero_tail
from hloscope_kernels.varying import output, varying_alike

# The first generation whose vector units compute in bfloat16, two numbers at once.
_BFLOAT16_ARITHMETIC = 6
_TAIL_TILE = 16


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
    body = partial(_forward, activation=activation, blocks=blocks, for_machine=not interpret)
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
    body = partial(
        _backward,
        activation=activation,
        blocks=blocks,
        for_machine=not interpret,
        in_bfloat16=fused.dtype == jnp.bfloat16 and chip.generation >= _BFLOAT16_ARITHMETIC,
    )
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
            scratch_shapes=buffers(blocks),
        ),
        input_output_aliases=aliases or {},
        cost_estimate=_cost(grid.rows, widths, result[1], dtype.itemsize),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=grid.dimension_semantics, vmem_limit_bytes=chip.vmem_limit(windows)
        ),
        name=name,
        interpret=interpret,
    )(grid.prefetched(limit), *operands)


def _cost(rows: int, read: list[int], written: int, itemsize: int) -> pl.CostEstimate:
    """For the scheduler: the whole buffer, as the limit is not known when it decides. `flops` are vector operations,
    17 for two elements of the forward pass and 18 for one of the gradient (docs/row_kernels.md): those of SiLU,
    as which GELU is counted too."""
    numbers = rows * read[0] // 2
    return pl.CostEstimate(
        flops=17 * numbers // 2 if len(read) == 1 else 18 * numbers,
        transcendentals=2 * numbers,
        bytes_accessed=rows * (sum(read) + written) * itemsize,
    )


def _forward(
    prefetched: Any,
    fused: Any,
    out: Any,
    *kept: Any,
    activation: Activation,
    blocks: Blocks,
    for_machine: bool,
    grid: RowGrid,
) -> None:
    mlp = out.shape[1]

    def ahead(rows: Any, columns: slice, to: Any) -> None:
        gate = fused[rows, columns].astype(jnp.float32)
        to[...] = slope(gate, activation, fused.dtype, for_machine=for_machine)

    def finish(rows: Any, columns: slice, known: Any) -> None:
        gate = fused[rows, columns].astype(jnp.float32)
        up = fused[rows, _second_half(columns, mlp)].astype(jnp.float32)
        out[rows, columns] = glu(gate, up, known[...]).astype(out.dtype)

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row
        in_turns(mlp, blocks, kept, ahead, finish)
        zero_tail(out, valid_rows, _TAIL_TILE)

    grid.visit(prefetched, block)


def _backward(
    prefetched: Any,
    fused: Any,
    gradient: Any,
    out: Any,
    *kept: Any,
    activation: Activation,
    blocks: Blocks,
    for_machine: bool,
    in_bfloat16: bool,
    grid: RowGrid,
) -> None:
    mlp = gradient.shape[1]

    def ahead(rows: Any, columns: slice, to: Any) -> None:
        if activation == "silu":
            to[...] = minus_sigmoid(fused[rows, columns].astype(jnp.float32), for_machine=for_machine)

    def finish(rows: Any, columns: slice, known: Any) -> None:
        gate = fused[rows, columns].astype(jnp.float32)
        up = fused[rows, _second_half(columns, mlp)].astype(jnp.float32)
        d_glu = gradient[rows, columns].astype(jnp.float32)
        if activation == "silu":
            halves = minus_silu_glu_gradient(gate, up, d_glu, known[...])
        else:
            halves = minus_gelu_glu_gradient(gate, up, d_glu, fused.dtype)
        for half, negated in zip((columns, _second_half(columns, mlp)), halves, strict=True):
            if in_bfloat16:
                # Through memory: registers of bfloat16 that come from there are in the order in which they go back.
                out[rows, half] = negated.astype(out.dtype)
                out[rows, half] = unsigned_zero(out[rows, half])
            else:
                out[rows, half] = unsigned_zero(negated).astype(out.dtype)

    def block(first_row: Any, valid_rows: Any) -> None:
        del first_row
        in_turns(mlp, blocks, kept, ahead, finish)
        zero_tail(out, valid_rows, _TAIL_TILE)

    grid.visit(prefetched, block)


def _second_half(columns: slice, mlp: int) -> slice:
    return slice(mlp + columns.start, mlp + columns.stop)
