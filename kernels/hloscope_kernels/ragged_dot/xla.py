"""Grouped matmuls by `lax.ragged_dot_general`, on every platform.

What XLA leaves undefined is settled around it. Its TPU kernel never visits a row tile without a group, so dead
rows hold whatever was in memory: they are zeroed by select. It knows no group offset (jax refuses one), so rows
before the first group held here are given to that group in the dot, where the select drops them, and to a group
of their own in the contraction, which is sliced off.
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

from hloscope_kernels.ragged_dot.bounds import in_groups

General = Callable[..., jax.Array]

_DOT = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
_TRANSPOSED = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0])
_CONTRACTION = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def dot(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    transposed: bool,
    out_dtype: Any,
    precision: Any = None,
    general: General = lax.ragged_dot_general,
) -> jax.Array:
    """`[m, k]` times the groups of `[g, k, n]` (`[g, n, k]` when transposed): `[m, n]`."""
    sizes = jnp.diff(bounds).at[0].add(bounds[0])
    how = {"precision": precision, "preferred_element_type": out_dtype}
    out = _batched(general, _TRANSPOSED if transposed else _DOT, how)(lhs, rhs, sizes)
    return jnp.where(in_groups(bounds, lhs.shape[0]), out, jnp.zeros_like(out))


def contraction(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    out_dtype: Any,
    precision: Any = None,
    offset: bool = True,
    general: General = lax.ragged_dot_general,
) -> jax.Array:
    """`[m, p]` and `[m, q]` contracted over each group's rows: `[g, p, q]`, zeros where a group is empty.

    `offset=False` states that the first group starts at row 0, which saves the slice.
    """
    how = {"precision": precision, "preferred_element_type": out_dtype}
    sizes = jnp.diff(bounds, prepend=0) if offset else jnp.diff(bounds)
    out = _batched(general, _CONTRACTION, how)(lhs, rhs, sizes)
    return out[1:] if offset else out


def _batched(
    general: General, numbers: lax.RaggedDotDimensionNumbers, how: dict[str, Any]
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """The product under `vmap` too: jax batches it only when all operands are batched, so the others are repeated."""

    @jax.custom_batching.custom_vmap
    def product(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        return general(lhs, rhs, sizes, ragged_dot_dimension_numbers=numbers, **how)

    def rule(axis_size: int, batched: list[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
        whole = [
            x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, is_batched in zip(operands, batched, strict=True)
        ]
        plain = partial(general, ragged_dot_dimension_numbers=numbers, **how)
        return jax.vmap(plain)(*whole), True

    product.def_vmap(rule)
    return product
