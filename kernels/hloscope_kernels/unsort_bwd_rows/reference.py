"""The plain XLA reference of `unsort_bwd_rows`: the whole buffer, then zeros where rows are not valid."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp


def unsort_bwd_rows_reference(
    gradient: jax.Array, y: jax.Array, weights: jax.Array, limit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(gradient * weights, row dots of gradient and y); zeros in rows from `limit` on."""
    wide = gradient.astype(jnp.float32)
    weighted = wide * weights.astype(jnp.float32)[:, None]
    dots = jnp.sum(wide * y.astype(jnp.float32), axis=1)
    # A select, never a multiply: dead rows may hold NaN.
    valid = jnp.arange(gradient.shape[0], dtype=jnp.int32) < limit
    weighted = jnp.where(valid[:, None], weighted, 0.0).astype(gradient.dtype)
    return weighted, jnp.where(valid, dots, 0.0)
