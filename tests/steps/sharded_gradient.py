"""A weight gradient that is reduce-scattered over 128 devices, along either of two dimensions.

Sharding the weight along its second dimension makes the compiler transpose the gradient first; sharding it
along the third does not.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import hloscope as hs

EXPERTS, EMBED, MLP, TOKENS = 64, 1024, 4096, 512


def _step(topology: hs.Topology, spec: PartitionSpec) -> hs.Step:
    mesh = topology.mesh(fsdp=topology.num_devices)
    tokens = TOKENS * topology.num_devices

    def struct(shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def loss(w, x, dy):
        y = jnp.einsum("etd,edf->etf", x, w.astype(jnp.bfloat16))
        return jnp.sum(y.astype(jnp.float32) * dy.astype(jnp.float32))

    def step(w, x, dy):
        return w - 0.1 * jax.grad(loss)(w, x, dy)

    by_tokens = PartitionSpec(None, "fsdp")
    args = (
        struct((EXPERTS, EMBED, MLP), jnp.float32, spec),
        struct((EXPERTS, tokens, EMBED), jnp.bfloat16, by_tokens),
        struct((EXPERTS, tokens, MLP), jnp.bfloat16, by_tokens),
    )
    return hs.Step(step, args=args, donate_argnums=(0,), out_shardings=NamedSharding(mesh, spec))


@hs.step(topology="tpu7x:4x4x4")
def embed_sharded(topology: hs.Topology) -> hs.Step:
    return _step(topology, PartitionSpec(None, "fsdp"))


@hs.step(topology="tpu7x:4x4x4")
def mlp_sharded(topology: hs.Topology) -> hs.Step:
    return _step(topology, PartitionSpec(None, None, "fsdp"))
