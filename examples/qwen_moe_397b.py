"""The published expert shape of Qwen3.5 397B-A17B in a whole training step for 128 tpu7x devices.

    hloscope analyze examples/qwen_moe_397b.py

60 layers, hidden size 4096, 512 experts of 1024 features, top-10, vocabulary 248,320; FSDP over 16, experts
over 8, two sequences of 4096 tokens a device. An expert group holds 65,536 tokens, so at a ragged buffer
factor of 2.75 each device's row buffer has 65,536 * 10 / 8 * 2.75 = 225,280 rows, of which an even spread
fills 81,920.

Not the published model in every part: all layers have plain grouped-query attention (it has linear attention
in three layers of four), and there is no shared expert and no load-balancing loss. For `cpu:8` a small
configuration of the same code is built, which can be run.
"""

from dataclasses import replace

import jax.numpy as jnp
from _moe import Experts
from _training import abstract_batch, abstract_state, sampler, shardings, training_step
from _transformer import Trunk
from moe_train_step import loss, parameters

import hloscope as hs

# The dimension of wo [experts, mlp, embed] that FSDP shards. Which one makes the compiler transpose every wo
# gradient for its reduce-scatter depends on shapes, device count and compiler: try "mlp".
WO_FSDP = "embed"

TRUNK = Trunk(
    layers=60,
    embed=4096,
    heads=32,
    kv_heads=2,
    head_dim=256,
    vocab=248_320,
    batch=256,
    sequence=4096,
    query_block=512,
    batch_axes=("fsdp", "expert"),
)
EXPERTS = Experts(count=512, top_k=10, embed=4096, mlp=1024, ragged_buffer_factor=2.75, wo_fsdp=WO_FSDP)

SMALL_TRUNK = Trunk(
    layers=2,
    embed=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=256,
    batch=8,
    sequence=64,
    query_block=16,
    batch_axes=("fsdp", "expert"),
    dtype=jnp.float32,
)
SMALL_EXPERTS = replace(EXPERTS, count=16, top_k=4, embed=64, mlp=32)


@hs.step(topology="tpu7x:4x4x4")
def train_step(topology: hs.Topology) -> hs.Step:
    """The step, small on a CPU."""
    if topology.platform == "tpu":
        trunk, experts, mesh = TRUNK, EXPERTS, topology.mesh(fsdp=16, expert=8)
    else:
        trunk, experts, mesh = SMALL_TRUNK, SMALL_EXPERTS, topology.mesh(fsdp=2, expert=4)
    state = abstract_state(parameters(trunk, experts), mesh)
    return hs.Step(
        training_step(loss(trunk, experts, mesh)),
        args=(state, abstract_batch(trunk, mesh)),
        donate_argnums=(0,),
        out_shardings=(shardings(state), None),
        sample=sampler(parameters(trunk, experts), trunk, mesh),
    )
