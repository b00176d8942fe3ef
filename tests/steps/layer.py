"""Row kernels between grouped matmuls, whose layouts they have to take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hloscope as hs
from hloscope_kernels import fused_glu, unsort_bwd_rows, valid_rows

ROWS, HIDDEN, MLP, EXPERTS = 16_384, 1_024, 512, 8


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=1, keepdims=True) + 1e-6)).astype(x.dtype)


@jax.custom_vjp
def _weigh(y: jax.Array, weights: jax.Array, limit: jax.Array) -> jax.Array:
    return (y.astype(jnp.float32) * weights[:, None]).astype(y.dtype)


def _weigh_bwd(saved: tuple[jax.Array, ...], gradient: jax.Array) -> Any:
    return *unsort_bwd_rows(gradient, *saved, implementation="pallas_tpu"), None


_weigh.defvjp(lambda *operands: (_weigh(*operands), operands), _weigh_bwd)


def _step(x: Any, wi: Any, wo: Any, sizes: jax.Array, weights: Any, gradient: Any) -> Any:
    limit = jnp.sum(sizes)

    def layer(x: Any, wi: Any, wo: Any, weights: Any) -> jax.Array:
        hidden = jax.lax.ragged_dot(x, wi, sizes)
        activated = fused_glu(hidden, limit, implementation="pallas_tpu")
        return _weigh(jax.lax.ragged_dot(activated, wo, sizes), weights, limit)

    result, pullback = jax.vjp(jax.checkpoint(layer), x, wi, wo, weights)
    return valid_rows(_norm, limit, implementation="pallas_tpu")(result), pullback(gradient)


@hs.step(topology="tpu7x:2x2x1")
def layer(topology: hs.Topology) -> hs.Step:
    whole = NamedSharding(Mesh(np.array(topology.devices[:1]), ("device",)), PartitionSpec())
    rows = (ROWS, HIDDEN)
    operands = [
        (rows, jnp.bfloat16),
        ((EXPERTS, HIDDEN, 2 * MLP), jnp.bfloat16),
        ((EXPERTS, MLP, HIDDEN), jnp.bfloat16),
        ((EXPERTS,), jnp.int32),
        ((ROWS,), jnp.float32),
        (rows, jnp.bfloat16),
    ]
    return hs.Step(_step, args=tuple(jax.ShapeDtypeStruct(*o, sharding=whole) for o in operands))
