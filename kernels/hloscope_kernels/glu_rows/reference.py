"""The plain XLA reference of `glu_rows`: the whole buffer, then zeros where rows are not valid."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from hloscope_kernels.glu_rows.formula import (
    Activation,
    glu,
    minus_gelu_glu_gradient,
    minus_sigmoid,
    minus_silu_glu_gradient,
    slope,
    unsigned_zero,
)


def glu_rows_reference(fused: jax.Array, limit: jax.Array, activation: Activation) -> jax.Array:
    """act(gate) * up of the valid rows, zeros elsewhere: [rows, 2 * mlp] to [rows, mlp]."""
    gate, up = _halves(fused)
    activated = glu(gate, up, slope(gate, activation, fused.dtype))
    return _masked(activated.astype(fused.dtype), limit)


def glu_rows_bwd_reference(
    fused: jax.Array, gradient: jax.Array, limit: jax.Array, activation: Activation
) -> jax.Array:
    """[d_gate, d_up] of the valid rows, zeros elsewhere: [rows, 2 * mlp]."""
    gate, up = _halves(fused)
    wide = gradient.astype(jnp.float32)
    if activation == "silu":
        halves = minus_silu_glu_gradient(gate, up, wide, minus_sigmoid(gate))
    else:
        halves = minus_gelu_glu_gradient(gate, up, wide, fused.dtype)
    return _masked(unsigned_zero(jnp.concatenate(halves, axis=1).astype(fused.dtype)), limit)


def _halves(fused: jax.Array) -> tuple[jax.Array, jax.Array]:
    mlp = fused.shape[1] // 2
    wide = fused.astype(jnp.float32)
    return wide[:, :mlp], wide[:, mlp:]


def _masked(values: jax.Array, limit: jax.Array) -> jax.Array:
    """A select, never a multiply: dead rows may hold NaN."""
    row = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
    return jnp.where(row < limit, values, jnp.zeros((), values.dtype))
