"""A dense training step, with nothing ragged in it: what a plain FSDP and tensor-parallel step looks like.

    hloscope analyze examples/dense_train_step.py

The trunk of `moe_train_step.py` with a dense SwiGLU feed-forward part, on the eight devices of four tpu7x
chips: FSDP over four, heads and hidden features over two. For `cpu:8` a small configuration of the same code
is built, which can be run.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from _training import abstract_batch, abstract_state, shardings, training_step
from _transformer import Parameter, Parameters, Params, Trunk, next_token_loss, trunk_parameters
from jax import Array
from jax.sharding import Mesh, PartitionSpec

import hloscope as hs

TRUNK = Trunk(
    layers=16,
    embed=2048,
    heads=16,
    kv_heads=4,
    head_dim=128,
    vocab=49_152,
    batch=16,
    sequence=2048,
    query_block=512,
    batch_axes=("fsdp",),
    tensor_axis="tensor",
)
MLP = 5632

SMALL_TRUNK = Trunk(
    layers=2,
    embed=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=256,
    batch=8,
    sequence=32,
    query_block=16,
    batch_axes=("fsdp",),
    tensor_axis="tensor",
    dtype=jnp.float32,
)
SMALL_MLP = 192


def parameters(trunk: Trunk, mlp: int) -> Parameters:
    """Every parameter of the model."""
    embed, hidden = trunk.embed, PartitionSpec("fsdp", "tensor")
    return trunk_parameters(
        trunk,
        {
            "gate": Parameter((embed, mlp), hidden, embed**-0.5),
            "up": Parameter((embed, mlp), hidden, embed**-0.5),
            "down": Parameter((mlp, embed), PartitionSpec("tensor", "fsdp"), mlp**-0.5),
        },
    )


def swiglu(x: Array, layer: Params) -> Array:
    """The gated feed-forward part over x [batch, sequence, embed]."""
    gate, up = x @ layer["gate"].astype(x.dtype), x @ layer["up"].astype(x.dtype)
    return (jax.nn.silu(gate) * up) @ layer["down"].astype(x.dtype)


def loss(trunk: Trunk, mesh: Mesh) -> Callable[[Any, dict[str, Array]], Array]:
    """(params, batch) -> loss."""
    return partial(next_token_loss, trunk, mesh, swiglu)


@hs.step(topology="tpu7x:2x2x1")
def train_step(topology: hs.Topology) -> hs.Step:
    """The step, small on a CPU."""
    trunk, mlp = (TRUNK, MLP) if topology.platform == "tpu" else (SMALL_TRUNK, SMALL_MLP)
    mesh = topology.mesh(fsdp=4, tensor=2)
    state = abstract_state(parameters(trunk, mlp), mesh)
    return hs.Step(
        training_step(loss(trunk, mesh)),
        args=(state, abstract_batch(trunk, mesh)),
        donate_argnums=(0,),
        out_shardings=(shardings(state), None),
    )
