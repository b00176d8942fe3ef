"""One MoE layer on one device, in two ways: every row of its buffer a token, or with rows to spare."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import hloscope as hs

TOKENS, TOP_K, EXPERTS, EMBED, MLP = 16384, 2, 8, 1024, 512


def _layer(wi, wo, x, router, rows):
    weights, ids = jax.lax.top_k(jax.nn.softmax((x @ router).astype(jnp.float32)), TOP_K)
    flat = ids.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=EXPERTS).astype(jnp.int32)
    source = jnp.pad(order // TOP_K, (0, rows - order.size), constant_values=TOKENS)
    packed = jnp.take(x, source, axis=0, mode="fill", fill_value=0)
    hidden = jax.lax.ragged_dot(packed, wi, sizes)
    out = jax.lax.ragged_dot(jax.nn.silu(hidden[:, :MLP]) * hidden[:, MLP:], wo, sizes)
    scale = jnp.pad(weights.reshape(-1)[order], (0, rows - order.size)).astype(x.dtype)
    return jnp.zeros_like(x).at[source].add(out * scale[:, None], mode="drop")


def _step(topology: hs.Topology, rows: int) -> hs.Step:
    everywhere = NamedSharding(topology.mesh(data=topology.num_devices), PartitionSpec())

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=everywhere)

    def step(wi, wo, x, router):
        def loss(wi, wo):
            return jnp.sum(_layer(wi, wo, x, router, rows).astype(jnp.float32) ** 2)

        gradients = jax.grad(loss, argnums=(0, 1))(wi, wo)
        return jax.tree.map(lambda w, g: w - 0.1 * g, (wi, wo), gradients)

    args = (
        struct(EXPERTS, EMBED, 2 * MLP),
        struct(EXPERTS, MLP, EMBED),
        struct(TOKENS, EMBED),
        struct(EMBED, EXPERTS),
    )
    return hs.Step(step, args=args, donate_argnums=(0, 1))


@hs.step(topology="v6e:2x2")
def dropless(topology: hs.Topology) -> hs.Step:
    return _step(topology, TOKENS * TOP_K)


@hs.step(topology="v6e:2x2")
def padded(topology: hs.Topology) -> hs.Step:
    return _step(topology, 2 * TOKENS * TOP_K)
