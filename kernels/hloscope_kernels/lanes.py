"""Numbers per row, between HBM and registers.

A number per row would waste 127 of 128 lanes as a column. In HBM such numbers are lane-dense, 128 of
them in the lanes of one row; to meet a matrix they must stand in a column. A 128 x 128 transpose turns
one into the other.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hloscope_kernels.row_grid import RowGrid

LANES = 128


def dense_shape(grid: RowGrid) -> tuple[int, int, int]:
    """The shape of lane-dense numbers: [blocks, rows of a block / 128, 128], each block's a window of its own."""
    return grid.blocks, grid.block_rows // LANES, LANES


def lane_dense(vector: jax.Array, grid: RowGrid) -> jax.Array:
    """[rows] as `dense_shape`, with zeros behind the last row."""
    return jnp.pad(vector, (0, grid.blocks * grid.block_rows - grid.rows)).reshape(dense_shape(grid))


def dense_window(grid: RowGrid) -> pl.BlockSpec:
    """The window of a block's lane-dense numbers: [rows of a block / 128, 128]."""

    def per_row(core: Any, step: Any, column: Any, prefetched: Any) -> tuple[Any, int, int]:
        return grid.block_index(core, step, column, prefetched)[0], 0, 0

    return pl.BlockSpec((None, grid.block_rows // LANES, LANES), per_row)


def rows_to_columns(dense: Any, columns: Any) -> None:
    """Lane-dense numbers [rows / 128, 128] to [rows, 128], each number in all lanes of its row."""
    for index in range(dense.shape[0]):
        row = jnp.broadcast_to(dense[index : index + 1, :], (LANES, LANES))
        columns[index * LANES : (index + 1) * LANES, :] = row.T


def sums_to_rows(columns: Any, dense: Any, valid_rows: Any) -> None:
    """The sum of each row of [rows, 128], lane-dense, zero from `valid_rows` on.

    With the rows in lanes, the sum over columns is a plain sum of registers.
    """
    for index in range(dense.shape[0]):
        row = columns[index * LANES : (index + 1) * LANES, :].T
        _store(dense, index, jnp.sum(row, axis=0, keepdims=True), valid_rows)


def columns_to_rows(columns: Any, dense: Any, valid_rows: Any) -> None:
    """The number in all lanes of each row of [rows, 128], lane-dense, zero from `valid_rows` on."""
    for index in range(dense.shape[0]):
        row = columns[index * LANES : (index + 1) * LANES, :].T
        _store(dense, index, row[:1, :], valid_rows)


def _store(dense: Any, index: int, row: Any, valid_rows: Any) -> None:
    position = index * LANES + lax.broadcasted_iota(jnp.int32, row.shape, 1)
    dense[index : index + 1, :] = jnp.where(position < valid_rows, row, jnp.zeros_like(row))
