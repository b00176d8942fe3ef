"""A mixture-of-experts layer and its gradient in plain jax, and with row kernels in it, for `layer_static.py`.

The published expert shape, one device's part: a ragged buffer of 225,280 rows, hidden 4096, mlp 1024, 64 experts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hloscope as hs
from hloscope_kernels import fused_glu, unsort_bwd_rows

ROWS, VALID, MLP, HIDDEN, EXPERTS, TOKENS = 225_280, 126_156, 1_024, 4_096, 64, 65_536
F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32
OPERANDS = (
    ((ROWS, HIDDEN), BF16),  # tokens, sorted by expert
    ((EXPERTS, HIDDEN, 2 * MLP), BF16),
    ((EXPERTS, MLP, HIDDEN), BF16),
    ((EXPERTS,), S32),  # rows of each expert
    ((ROWS,), F32),  # what each row weighs
    ((ROWS,), S32),  # the token of each row
    ((TOKENS, HIDDEN), BF16),  # the gradient of the result
)

Glu = Callable[[jax.Array, jax.Array], jax.Array]
Weigh = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _glu(fused: jax.Array, limit: jax.Array) -> jax.Array:
    gate, up = jnp.split(fused, 2, axis=1)
    return jax.nn.silu(gate) * up


def _weigh(y: jax.Array, weights: jax.Array, limit: jax.Array) -> jax.Array:
    return (y.astype(F32) * weights[:, None]).astype(y.dtype)


@jax.custom_vjp
def _weigh_rows(y: jax.Array, weights: jax.Array, limit: jax.Array) -> jax.Array:
    return _weigh(y, weights, limit)


def _weigh_rows_bwd(saved: tuple[jax.Array, ...], gradient: jax.Array) -> Any:
    y, weights, limit = saved
    by_y, by_weights = unsort_bwd_rows(gradient, y, weights, limit, implementation="pallas_tpu", donate=True)
    return by_y, by_weights, None


_weigh_rows.defvjp(lambda *operands: (_weigh(*operands), operands), _weigh_rows_bwd)


def _step(glu: Glu, weigh: Weigh) -> Callable[..., Any]:
    def layer(sizes: jax.Array, tokens: jax.Array, x: Any, wi: Any, wo: Any, weights: Any) -> jax.Array:
        limit = jnp.sum(sizes)
        y = jax.lax.ragged_dot(glu(jax.lax.ragged_dot(x, wi, sizes), limit), wo, sizes)
        y = weigh(y, weights, limit)
        summed = jnp.zeros((TOKENS, HIDDEN), F32).at[tokens].add(y.astype(F32), mode="promise_in_bounds")
        return summed.astype(BF16)

    def step(x: Any, wi: Any, wo: Any, sizes: Any, weights: Any, tokens: Any, gradient: Any) -> Any:
        result, pullback = jax.vjp(jax.checkpoint(partial(layer, sizes, tokens)), x, wi, wo, weights)
        return result, pullback(gradient)

    return step


def _on_one_device(topology: hs.Topology, glu: Glu, weigh: Weigh) -> hs.Step:
    whole = NamedSharding(Mesh(np.array(topology.devices[:1]), ("device",)), PartitionSpec())
    operands = tuple(jax.ShapeDtypeStruct(*operand, sharding=whole) for operand in OPERANDS)
    return hs.Step(_step(glu, weigh), args=operands, valid_fraction=VALID / ROWS)


@hs.step(topology="v6e:2x2")
def plain(topology: hs.Topology) -> hs.Step:
    """As XLA compiles it."""
    return _on_one_device(topology, _glu, _weigh)


@hs.step(topology="v6e:2x2")
def kernels(topology: hs.Topology) -> hs.Step:
    """With kernels that visit valid rows only."""
    return _on_one_device(topology, partial(fused_glu, implementation="pallas_tpu"), _weigh_rows)
