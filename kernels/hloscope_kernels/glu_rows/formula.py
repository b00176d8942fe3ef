"""The arithmetic of a gated linear unit, in float32 and in the order in which XLA does it.

Inside a fusion XLA keeps bfloat16 values in float32 and rounds only what it writes. The reference and
the kernels share these functions, so that both round at the same places: SiLU is negate, exp, add 1,
divide, multiply. Rounding each step to bfloat16 instead would change about 3 % of the elements.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np

Activation = Literal["silu", "gelu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


def glu(gate: jax.Array, up: jax.Array, activation: Activation, dtype: Any) -> jax.Array:
    """act(gate) * up, all float32 and of one shape.

    `dtype` is the dtype of the buffer: XLA rounds the constants of GELU to it.
    """
    return _activate(gate, activation, dtype) * up


def glu_gradient(
    gate: jax.Array,
    up: jax.Array,
    gradient: jax.Array,
    activation: Activation,
    dtype: Any,
    slow: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(d_gate, d_up) for the gradient of `glu`, all float32 and of one shape.

    A zero never keeps its sign: automatic differentiation adds the two halves after padding them
    with zeros, and -0 + 0 is +0. `slow` is `slow_part` of the same gate, where it was computed before.
    """
    by_activation = gradient * up
    if activation == "silu":
        # Negated from end to end and taken from 0 last: that turns -0 to +0 in one operation.
        sigmoid = _sigmoid(gate) if slow is None else slow
        minus_gate = -gate
        by_sigmoid = (minus_gate * by_activation) * (sigmoid * (1.0 - sigmoid))
        return 0.0 - (by_sigmoid - by_activation * sigmoid), 0.0 - gradient * (minus_gate * sigmoid)
    activated, pullback = cast("tuple[jax.Array, Any]", jax.vjp(partial(_gelu, dtype=dtype), gate))
    return _unsigned_zero(pullback(by_activation)[0]), _unsigned_zero(gradient * activated)


def slow_part(gate: jax.Array, activation: Activation) -> jax.Array | None:
    """What of `glu_gradient` waits for exponentials and depends on the gate alone, to be computed ahead; None where
    nothing is worth it."""
    return _sigmoid(gate) if activation == "silu" else None


def _activate(x: jax.Array, activation: Activation, dtype: Any) -> jax.Array:
    return x * _sigmoid(x) if activation == "silu" else _gelu(x, dtype)


def _sigmoid(x: jax.Array) -> jax.Array:
    return 1.0 / (1.0 + jnp.exp(-x))


def _gelu(x: jax.Array, dtype: Any) -> jax.Array:
    """GELU by tanh, as `jax.nn.gelu(approximate=True)` computes it on `dtype`."""

    def constant(value: float) -> float:
        return float(np.asarray(value, dtype))

    inner = constant(0.7978845608028654) * (x + constant(0.044715) * x**3)  # sqrt(2 / pi)
    return x * (0.5 * (1.0 + jnp.tanh(inner)))


def _unsigned_zero(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0.0, 0.0, x)
