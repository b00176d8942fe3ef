"""exp(-x) as XLA's fusions have it in their machine code."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

_LOG2_E = 1.4426950408889634


def exp_of_minus(x: jax.Array, *, for_machine: bool) -> jax.Array:
    """exp(-x), for what a TPU runs or, with the host's own exponential, for everything else.

    Mosaic makes three operations of exp(-x): 0 - x, times log2(e), two to the power of that. With the
    minus in the constant the first falls away and every bit but the sign of a NaN stays.
    """
    return jnp.exp2(x * -_LOG2_E) if for_machine else jnp.exp(-x)
