"""What the tests of the row kernels share: limits worth trying, dead rows full of NaN, bitwise comparison."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def limits(rows: int, block_rows: int) -> list[int]:
    """None, one, around the edge of a block, the published 56 %, and all rows."""
    return [0, 1, block_rows - 1, block_rows, block_rows + 1, int(rows * 0.56), rows - 1, rows]


def normal(seed: int, shape: tuple[int, ...], dtype: Any, scale: float = 3.0) -> jax.Array:
    drawn = np.random.default_rng(seed).standard_normal(shape) * scale
    return jnp.asarray(drawn > 0 if dtype is bool else drawn, dtype)


def with_dead_rows(value: jax.Array, limit: int) -> jax.Array:
    """NaN in every row from `limit` on: none may come through."""
    dead = jnp.arange(value.shape[0]) >= limit
    return jnp.where(dead.reshape((-1,) + (1,) * (value.ndim - 1)), jnp.nan, value).astype(value.dtype)


def written_rows(rows: int, limit: int, block_rows: int) -> int:
    """Rows that a kernel writes: up to the end of the last block with a valid row, one block at least."""
    return min(rows, max(1, -(-limit // block_rows)) * block_rows)


def bits(value: Any) -> np.ndarray:
    """The bit pattern, all NaN made one."""
    array = np.asarray(value)
    patterns = array.view({2: np.uint16, 4: np.uint32}[array.dtype.itemsize]).copy()
    patterns[np.isnan(array.astype(np.float32))] = np.iinfo(patterns.dtype).max
    return patterns


def every_bfloat16() -> jax.Array:
    """All 65,536 bit patterns, [512, 128]."""
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(512, 128)
    return jax.lax.bitcast_convert_type(jnp.asarray(patterns), jnp.bfloat16)
