"""Layers in a scan, and Adam: the stacked gradients of all layers wait for the optimizer.

On host devices it is small enough to be run.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import hloscope as hs

WIDE = {"layers": 12, "width": 2048, "vocab": 32_768, "tokens": 2048}
NARROW = {"layers": 3, "width": 16, "vocab": 64, "tokens": 8}


def loss(params: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
    """Cross-entropy of a chain of layers."""

    @jax.checkpoint
    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        hidden = jnp.tanh(x @ w["up"].astype(x.dtype))
        return x + hidden @ w["down"].astype(x.dtype), None

    x, _ = lax.scan(layer, x, params["layers"])
    logits = (x @ params["head"].astype(x.dtype)).astype(jnp.float32)
    hit = jnp.arange(logits.shape[-1]) == targets[:, None]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(hit, logits, 0.0), axis=-1))


def adam(state: dict[str, Any], gradients: Any) -> dict[str, Any]:
    """One update of parameters and moments."""
    steps = state["steps"] + 1

    def mean(m: jax.Array, g: jax.Array) -> jax.Array:
        return 0.9 * m + 0.1 * g

    def variance(v: jax.Array, g: jax.Array) -> jax.Array:
        return 0.95 * v + 0.05 * jnp.square(g)

    def parameter(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - 1e-3 * (m / (1 - 0.9**steps)) / (jnp.sqrt(v / (1 - 0.95**steps)) + 1e-8)

    m = jax.tree.map(mean, state["mean"], gradients)
    v = jax.tree.map(variance, state["variance"], gradients)
    return {
        "params": jax.tree.map(parameter, state["params"], m, v),
        "mean": m,
        "variance": v,
        "steps": steps,
    }


def sample_of(args: Any) -> Any:
    """What makes values for the arguments: a state in the midst of training."""

    def sample(seed: int) -> Any:
        keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(args))))

        def draw(path: Any, leaf: Any) -> jax.Array:
            if jnp.issubdtype(leaf.dtype, jnp.integer):
                return jnp.full(leaf.shape, 7, leaf.dtype)
            drawn = 0.1 * jax.random.normal(next(keys), leaf.shape, leaf.dtype)
            return 1e-2 + jnp.square(drawn) if "variance" in str(path) else drawn

        return jax.tree_util.tree_map_with_path(draw, args)

    return sample


@hs.step(topology="v6e:2x2")
def train_step(topology: hs.Topology) -> hs.Step:
    """The step, small on a CPU."""
    size = WIDE if topology.platform == "tpu" else NARROW
    mesh = topology.mesh(fsdp=topology.num_devices)
    layers, width, vocab = size["layers"], size["width"], size["vocab"]
    tokens = size["tokens"] * topology.num_devices

    def shaped(shape: tuple[int, ...], spec: PartitionSpec, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    params = {
        "head": shaped((width, vocab), PartitionSpec("fsdp")),
        "layers": {
            "up": shaped((layers, width, 4 * width), PartitionSpec(None, "fsdp")),
            "down": shaped((layers, 4 * width, width), PartitionSpec(None, None, "fsdp")),
        },
    }
    state = {"params": params, "mean": params, "variance": params}
    state["steps"] = shaped((), PartitionSpec(), jnp.int32)

    def step(state: Any, x: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state["params"], x, targets)
        return adam(state, gradients), value

    dtype = jnp.bfloat16 if topology.platform == "tpu" else jnp.float32
    rows = PartitionSpec("fsdp")
    args = (state, shaped((tokens, width), rows, dtype), shaped((tokens,), rows, jnp.int32))
    shardings = (jax.tree.map(lambda leaf: leaf.sharding, state), None)
    return hs.Step(step, args=args, donate_argnums=(0,), out_shardings=shardings, sample=sample_of(args))
