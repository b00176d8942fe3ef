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

from hloscope_kernels.exponential import exp_of_minus

Activation = Literal["silu", "gelu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)


def slope(gate: jax.Array, activation: Activation, dtype: Any, *, for_machine: bool = False) -> jax.Array:
    """act(gate) / gate: all of the activation that waits for an exponential.

    `dtype` is the dtype of the buffer: XLA rounds the constants of GELU to it. `for_machine`: see
    `exp_of_minus`.
    """
    if activation == "silu":
        return 1.0 / (1.0 + exp_of_minus(gate, for_machine=for_machine))
    return _gelu_slope(gate, dtype)


def glu(gate: jax.Array, up: jax.Array, slope: jax.Array) -> jax.Array:
    """act(gate) * up, all float32 and of one shape."""
    return (gate * slope) * up


def minus_sigmoid(gate: jax.Array, *, for_machine: bool = False) -> jax.Array:
    """What of the gradient of SiLU waits for an exponential."""
    return 1.0 / (-1.0 - exp_of_minus(gate, for_machine=for_machine))


def minus_silu_glu_gradient(
    gate: jax.Array, up: jax.Array, gradient: jax.Array, minus_sigmoid: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(-d_gate, -d_up) for the gradient of `glu` by SiLU, all float32 and of one shape; see `unsigned_zero`.

    With the sigmoid negated every product and sum is negated, and each rounds as it would without.
    """
    by_activation = gradient * up
    by_sigmoid = (gate * by_activation) * (minus_sigmoid * (1.0 + minus_sigmoid))
    return by_sigmoid + by_activation * minus_sigmoid, gradient * (gate * minus_sigmoid)


def minus_gelu_glu_gradient(
    gate: jax.Array, up: jax.Array, gradient: jax.Array, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """The same by GELU, whose constants XLA rounds to `dtype`."""
    minus_gradient = -gradient
    activated, pullback = cast("tuple[jax.Array, Any]", jax.vjp(partial(_gelu, dtype=dtype), gate))
    return pullback(minus_gradient * up)[0], minus_gradient * activated


def unsigned_zero(negated: jax.Array) -> jax.Array:
    """The gradient, of which no zero has a sign: automatic differentiation adds the two halves after padding them
    with zeros, and -0 + 0 is +0.

    Taken from 0, not added to it: compilers drop the addition.
    """
    return jnp.zeros((), negated.dtype) - negated


def _gelu(x: jax.Array, dtype: Any) -> jax.Array:
    """GELU by tanh, as `jax.nn.gelu(approximate=True)` computes it on `dtype`."""
    return x * _gelu_slope(x, dtype)


def _gelu_slope(x: jax.Array, dtype: Any) -> jax.Array:
    def constant(value: float) -> float:
        return float(np.asarray(value, dtype))

    inner = constant(0.7978845608028654) * (x + constant(0.044715) * x**3)  # sqrt(2 / pi)
    return 0.5 * (1.0 + jnp.tanh(inner))
