"""One layer of `examples/_moe.py` with its gradient: all the work on dead rows, and little else to compile."""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

import hloscope as hs

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from _moe import TOKENS, Experts, moe_layer

LARGE = Experts(count=16, top_k=2, embed=1024, mlp=512, ragged_buffer_factor=2.0)
SMALL = Experts(count=8, top_k=2, embed=64, mlp=32, ragged_buffer_factor=2.0)


@hs.step(topology="tpu7x:2x2x1")
def train_step(topology: hs.Topology) -> hs.Step:
    """The step; small, and in float32, on a CPU. Its row buffer has 32,768 rows."""
    on_tpu = topology.platform == "tpu"
    experts, length, dtype = (LARGE, 8192, jnp.bfloat16) if on_tpu else (SMALL, 16, jnp.float32)
    mesh = topology.mesh(fsdp=2, expert=4)

    def shaped(shape, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def step(params, x):
        layer = jax.checkpoint(partial(moe_layer, experts, mesh))

        def loss(params):
            # What it is added to keeps the layer in the backward pass.
            return jnp.mean(jnp.square((x + layer(x, params)).astype(jnp.float32)))

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda w, g: w - g.astype(w.dtype), params, gradients), value

    params = {name: shaped(p.shape, p.spec) for name, p in experts.parameters().items()}
    x = shaped((8, length, experts.embed), TOKENS)
    return hs.Step(step, args=(params, x), donate_argnums=(0,))
