"""A mixture-of-experts training step of middling size: what a ragged row buffer costs, in a minute.

    hloscope analyze examples/moe_train_step.py

Eight layers of ring-of-experts MoE (see `_moe.py`) with 32 experts, top-4, on the eight devices of four
tpu7x chips. Each device's row buffer has 32,768 rows, twice what an even spread of the tokens fills, and
every elementwise pass around the grouped matmuls runs over all of them. For `cpu:8` a small configuration of
the same code is built, which can be run.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from _moe import Experts, moe_layer
from _training import abstract_batch, abstract_state, sampler, shardings, training_step
from _transformer import Parameters, Trunk, next_token_loss, trunk_parameters
from jax.sharding import Mesh

import hloscope as hs

TRUNK = Trunk(
    layers=8,
    embed=2048,
    heads=16,
    kv_heads=4,
    head_dim=128,
    vocab=49_152,
    batch=16,
    sequence=2048,
    query_block=512,
    batch_axes=("fsdp", "expert"),
)
EXPERTS = Experts(count=32, top_k=4, embed=2048, mlp=768, ragged_buffer_factor=2.0)

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
    batch_axes=("fsdp", "expert"),
    dtype=jnp.float32,
)
SMALL_EXPERTS = Experts(count=8, top_k=2, embed=64, mlp=32, ragged_buffer_factor=2.0)


def parameters(trunk: Trunk, experts: Experts) -> Parameters:
    """Every parameter of the model."""
    return trunk_parameters(trunk, experts.parameters())


def loss(trunk: Trunk, experts: Experts, mesh: Mesh) -> Callable[[Any, dict[str, jax.Array]], jax.Array]:
    """(params, batch) -> loss."""
    return partial(next_token_loss, trunk, mesh, partial(moe_layer, experts, mesh))


@hs.step(topology="tpu7x:2x2x1")
def train_step(topology: hs.Topology) -> hs.Step:
    """The step, small on a CPU."""
    trunk, experts = (TRUNK, EXPERTS) if topology.platform == "tpu" else (SMALL_TRUNK, SMALL_EXPERTS)
    mesh = topology.mesh(fsdp=2, expert=4)
    state = abstract_state(parameters(trunk, experts), mesh)
    return hs.Step(
        training_step(loss(trunk, experts, mesh)),
        args=(state, abstract_batch(trunk, mesh)),
        donate_argnums=(0,),
        out_shardings=(shardings(state), None),
        sample=sampler(parameters(trunk, experts), trunk, mesh),
    )
