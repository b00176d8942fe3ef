"""Weights gathered over a whole slice: on whole cubes, whose axes are rings, and on less, whose axes are lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import hloscope as hs


def _same(weights: jax.Array) -> jax.Array:
    return weights


def _gather(topology: hs.Topology) -> hs.Step:
    mesh = topology.mesh(fsdp=topology.num_devices)
    sharded, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("fsdp",), ()))
    rows = 64 * topology.num_devices
    weights = jax.ShapeDtypeStruct((rows, 2048), jnp.bfloat16, sharding=sharded)
    return hs.Step(_same, args=(weights,), out_shardings=whole)


@hs.step(topology="tpu7x:4x4x4")
def gathered(topology: hs.Topology) -> hs.Step:
    return _gather(topology)


@hs.step(topology="tpu7x:2x4x4")
def gathered_small(topology: hs.Topology) -> hs.Step:
    return _gather(topology)
