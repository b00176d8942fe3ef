"""One TPU kernel for a row-wise program: blocks of whole rows, tiles that fit the registers."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import (
    LANES,
    columns_to_rows,
    dense_shape,
    dense_window,
    lane_dense,
    rows_to_columns,
    sums_to_rows,
)
from hloscope_kernels.row_grid import RowGrid, zero_tail
from hloscope_kernels.valid_rows.config import Blocks
from hloscope_kernels.valid_rows.evaluate import Tile, wide_dtype, widen
from hloscope_kernels.valid_rows.layout import Piece, is_vector, lockstep, summed_outputs
from hloscope_kernels.valid_rows.program import Operation, Program
from hloscope_kernels.valid_rows.roles import ELEMENTWISE, REDUCTIONS, Role
from hloscope_kernels.varying import output, varying_alike

_TAIL_TILE = 16
# Primitives that take the transcendental unit.
_TRANSCENDENTAL = frozenset(
    {
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "logistic",
        "tanh",
        "tan",
        "sin",
        "cos",
        "erf",
        "sqrt",
        "rsqrt",
        "cbrt",
        "pow",
        "div",
        "atan2",
        "rem",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernel:
    """A row-wise program that is to become a kernel.

    Attributes:
      program, roles: what to compute, and what each value depends on.
      rows: rows of the buffers.
      blocks: how they are cut.
    """

    program: Program
    roles: dict[int, Role]
    rows: int
    blocks: Blocks

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value in the function."""
        return self.program.types[value].shape

    def results(self) -> list[int]:
        """The values that are returned."""
        return [cast("int", value) for value in self.program.outputs]


def valid_rows_kernel(
    kernel: RowKernel,
    operands: Sequence[jax.Array],
    limit: jax.Array,
    *,
    chip: Chip,
    aliases: Mapping[int, int],
    name: str,
    interpret: bool = False,
) -> list[jax.Array]:
    """The program's results in the blocks below `limit`; `aliases` maps operands to results in place."""
    grid = RowGrid(rows=kernel.rows, block_rows=kernel.blocks.rows, cores=chip.cores)
    captured = [jnp.asarray(array) for array in kernel.program.captured.values()]
    limit, *given = varying_alike(limit, *operands, *captured)
    operands, captured = given[: len(operands)], given[len(operands) :]
    inputs = [_dense(value, grid) if is_vector(value.shape) else value for value in operands] + [
        widen(array).reshape(1, -1) for array in captured
    ]
    stored = [_stored(kernel, value, grid) for value in kernel.results()]
    vectors = [
        value for value in (*kernel.program.inputs, *kernel.results()) if is_vector(kernel.shape(value))
    ]
    outputs = pl.pallas_call(
        _Body(kernel, grid, for_machine=not interpret).run,
        out_shape=[output(shape, dtype, like=limit) for shape, dtype in stored],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid.grid(limit),
            in_specs=[_window(kernel, value, grid) for value in kernel.program.inputs]
            + [pl.BlockSpec(array.shape, _first) for array in inputs[len(operands) :]],
            out_specs=[_window(kernel, value, grid) for value in kernel.results()],
            scratch_shapes=[
                pltpu.VMEM((kernel.blocks.rows, LANES), _vector_dtype(kernel.program.types[value].dtype))
                for value in vectors
            ],
        ),
        input_output_aliases={1 + operand: result for operand, result in aliases.items()},
        cost_estimate=_cost(kernel),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=grid.dimension_semantics, vmem_limit_bytes=chip.vmem_limit(chip.window_bytes)
        ),
        name=name,
        interpret=interpret,
    )(grid.prefetched(limit), *inputs)
    return [_returned(kernel, value, array) for value, array in zip(kernel.results(), outputs, strict=True)]


def row_bytes(program: Program) -> int:
    """Bytes that one row of all operands and results takes in VMEM, columns padded to 128 lanes."""
    total = 0
    for value in (*program.inputs, *(cast("int", value) for value in program.outputs)):
        kind = program.types[value]
        if not is_vector(kind.shape):
            total += -(-kind.shape[1] // LANES) * LANES * kind.dtype.itemsize
    return max(total, LANES)


def vector_count(program: Program) -> int:
    """Operands and results that are one number per row."""
    values = (*program.inputs, *(cast("int", value) for value in program.outputs))
    return sum(is_vector(program.types[value].shape) for value in values)


def _first(*indices: Any) -> tuple[int, int]:
    del indices
    return 0, 0


def _dense(vector: jax.Array, grid: RowGrid) -> jax.Array:
    return lane_dense(widen(vector.reshape(-1)).astype(_vector_dtype(vector.dtype)), grid)


def _vector_dtype(dtype: Any) -> Any:
    """What numbers per row are kept in: 32 bits, for booleans too, which cannot be turned from lanes to rows."""
    return jnp.dtype(jnp.int32) if dtype == jnp.bool_ else wide_dtype(dtype)


def _stored(kernel: RowKernel, value: int, grid: RowGrid) -> tuple[tuple[int, ...], Any]:
    kind = kernel.program.types[value]
    if not is_vector(kind.shape):
        return kind.shape, kind.dtype
    return dense_shape(grid), wide_dtype(kind.dtype)


def _returned(kernel: RowKernel, value: int, array: jax.Array) -> jax.Array:
    kind = kernel.program.types[value]
    if not is_vector(kind.shape):
        return array
    return array.reshape(-1)[: kernel.rows].astype(kind.dtype).reshape(kind.shape)


def _window(kernel: RowKernel, value: int, grid: RowGrid) -> pl.BlockSpec:
    shape = kernel.shape(value)
    if is_vector(shape):
        return dense_window(grid)
    return pl.BlockSpec((kernel.blocks.rows, shape[1]), grid.block_index)


def _cost(kernel: RowKernel) -> pl.CostEstimate:
    """For the scheduler: the whole buffer, as the limit is not known when it decides."""
    program = kernel.program
    # Numbers of a row that each operation makes, or reduces.
    works = [
        (operation.name, max(math.prod(program.types[value].shape[1:]) for value in _values(operation)))
        for operation in program.operations
        if operation.name in ELEMENTWISE | REDUCTIONS
    ]
    return pl.CostEstimate(
        flops=kernel.rows * sum(numbers for _, numbers in works),
        transcendentals=kernel.rows * sum(numbers for name, numbers in works if name in _TRANSCENDENTAL),
        bytes_accessed=kernel.rows * row_bytes(program),
    )


def _values(operation: Operation) -> list[int]:
    return [value for value in (*operation.results, *operation.operands) if isinstance(value, int)]


class _Body:
    """The kernel's body; `run` gets the references in the order of the windows."""

    def __init__(self, kernel: RowKernel, grid: RowGrid, *, for_machine: bool) -> None:
        self.kernel, self.grid, self.blocks, self.for_machine = kernel, grid, kernel.blocks, for_machine
        self.groups = lockstep(kernel.program, kernel.roles)
        self.sums = summed_outputs(self.groups)

    def run(self, prefetched: Any, *references: Any) -> None:
        program = self.kernel.program
        read = len(program.inputs) + len(program.captured)
        inputs = dict(zip((*program.inputs, *program.captured), references[:read], strict=True))
        outputs = list(references[read : read + len(program.outputs)])
        scratch = list(references[read + len(program.outputs) :])
        columns = {value: scratch.pop(0) for value in program.inputs if is_vector(self.kernel.shape(value))}
        kept = {
            position: scratch.pop(0)
            for position, value in enumerate(self.kernel.results())
            if is_vector(self.kernel.shape(value))
        }

        def block(first_row: Any, valid_rows: Any) -> None:
            for value, column in columns.items():
                rows_to_columns(inputs[value], column)
            self._tiles(first_row, inputs, outputs, columns, kept)
            for position, reference in enumerate(outputs):
                if position in self.sums:
                    sums_to_rows(kept[position], reference, valid_rows)
                elif position in kept:
                    columns_to_rows(kept[position], reference, valid_rows)
                else:
                    zero_tail(reference, valid_rows, min(_TAIL_TILE, self.blocks.tile_rows))

        self.grid.visit(prefetched, block)

    def _tiles(
        self, first_row: Any, inputs: Any, outputs: Any, columns: dict[int, Any], kept: dict[int, Any]
    ) -> None:
        size = self.blocks.tile_rows

        def step(index: Any, carry: Any) -> Any:
            first = pl.multiple_of(index * size, size)
            rows = pl.ds(first, size)

            def load(value: int, start: int, stop: int) -> jax.Array:
                if value in columns:
                    found = columns[value][rows, :]
                    return found != 0 if self.kernel.program.types[value].dtype == jnp.bool_ else found
                reference = inputs[value]
                if value in self.kernel.program.captured:
                    width = reference.shape[1]
                    return reference[:, start:stop] if width > 1 else reference[:, :1]
                return widen(reference[rows, start:stop])

            tile = Tile(
                self.kernel.program,
                self.kernel.roles,
                size,
                first_row + first,
                load,
                for_machine=self.for_machine,
            )
            for group in self.groups:
                self._group(tile, group, rows, outputs, kept)
            for position in sorted(kept.keys() - self.sums):
                value = self.kernel.results()[position]
                kept[position][rows, :] = tile.per_row(value)
            return carry

        lax.fori_loop(0, self.blocks.rows // size, step, ())

    def _group(self, tile: Tile, group: list[Piece], rows: Any, outputs: Any, kept: Any) -> None:
        chunk = LANES if any(piece.is_sum for piece in group) else self.blocks.tile_columns
        sums: dict[int, jax.Array] = {}
        for start in range(0, group[0].width, chunk):
            stop = min(start + chunk, group[0].width)
            for piece in group:
                if piece.is_sum:
                    part = tile.partial_sums(piece.value, start, stop)
                    sums[piece.output] = sums[piece.output] + part if piece.output in sums else part
                else:
                    out = outputs[piece.output]
                    stored = tile.matrix(piece.value, start, stop).astype(out.dtype)
                    out[rows, piece.offset + start : piece.offset + stop] = stored
            tile.next_chunk()
        for position, total in sums.items():
            kept[position][rows, :] = total
