"""A step that nobody here wrote: the mixture-of-experts layer of MaxText, with its gradient and a plain update.

    pip install 'maxtext==0.2.5'    # and what it imports; next to hloscope
    hloscope apply-rules benchmarks/maxtext_layer.py:ring --select HS1 --valid-fraction 0.5
    hloscope apply-rules benchmarks/maxtext_layer.py:all_to_all --select HS1 --valid-fraction 0.5

Nothing of MaxText is changed. Its configuration is read from its own `base.yml`; what differs is below.
"""

# MaxText is no dependency of hloscope's, and has no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import maxtext
import numpy as np
from flax import nnx
from flax.linen import partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from maxtext.configs import pyconfig
from maxtext.layers import moe
from maxtext.layers.initializers import nd_dense_init

import hloscope as hs

EXPERTS, TOP_K, FSDP, EXPERT_AXIS = 16, 2, 2, 4
# embed, mlp, sequences, length
SIZES, SMALL = (2048, 1024, 8, 4096), (64, 32, 8, 16)
COMMON = {
    "run_name": "layer",
    "enable_checkpointing": False,
    "skip_jax_distributed_system": True,
    "log_config": False,
    "decoder_block": "mixtral",
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "per_device_batch_size": 1,
    "dtype": "bfloat16",
    "sparse_matmul": True,
    # lax.ragged_dot for the grouped matmuls: MaxText's own kernels tell nobody which rows they read.
    "megablox": False,
    "use_ragged_sort": True,
    "ragged_buffer_factor": 2.0,
    "ici_fsdp_parallelism": FSDP,
    "ici_expert_parallelism": EXPERT_AXIS,
}


@hs.step(topology="tpu7x:2x2x1")
def ring(topology: hs.Topology) -> hs.Step:
    """Each device gathers its expert group's tokens and packs those of its own experts."""
    return layer(topology, use_ring_of_experts=True)


@hs.step(topology="tpu7x:2x2x1")
def all_to_all(topology: hs.Topology) -> hs.Step:
    """Each device sends its tokens to the devices of their experts."""
    return layer(topology, use_ring_of_experts=False)


def layer(topology: hs.Topology, *, use_ring_of_experts: bool) -> hs.Step:
    """One update of the layer's parameters from the mean square of what it returns."""
    embed, mlp, sequences, length = SMALL if topology.platform == "cpu" else SIZES
    config = pyconfig.initialize(
        ["", str(Path(maxtext.__file__).parent / "configs" / "base.yml")],
        base_emb_dim=embed,
        base_mlp_dim=mlp,
        base_moe_mlp_dim=mlp,
        max_target_length=length,
        use_ring_of_experts=use_ring_of_experts,
        **COMMON,
    )
    axes = {"fsdp": FSDP, "expert": EXPERT_AXIS}
    shape = [axes.get(name, 1) for name in config.mesh_axes]
    mesh = Mesh(np.array(topology.devices).reshape(shape), config.mesh_axes)

    def made() -> moe.RoutedMoE:
        return moe.RoutedMoE(
            config=config,
            num_experts=EXPERTS,
            num_experts_per_tok=TOP_K,
            mesh=mesh,
            kernel_init=nd_dense_init(1.0, "fan_in", "truncated_normal"),
            kernel_axes=("embed", None),
            rngs=nnx.Rngs(params=0, dropout=1),
            intermediate_dim=mlp,
            dtype=jnp.bfloat16,
        )

    graph, params, rest = nnx.split(nnx.eval_shape(made), nnx.Param, ...)

    def placed(path, leaf):
        spec = P()
        if len(leaf.shape) == 3:
            spec = (
                P("expert", None, "fsdp") if "wo" in jax.tree_util.keystr(path) else P("expert", "fsdp", None)
            )
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    def update(params, rest, x):
        @jax.checkpoint
        def run(params, x):
            return nnx.merge(graph, params, rest)(x)[0]

        def loss(params):
            with mesh, partitioning.axis_rules(config.logical_axis_rules):
                out = run(params, x)
            return jnp.mean(jnp.square(out.astype(jnp.float32)))

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: (p - 0.01 * g).astype(p.dtype), params, gradients), value

    params, rest = (jax.tree_util.tree_map_with_path(placed, each) for each in (params, rest))
    x = jax.ShapeDtypeStruct(
        (sequences, length, embed),
        jnp.bfloat16,
        sharding=NamedSharding(mesh, P(("fsdp", "expert"), None, None)),
    )
    return hs.Step(update, args=(params, rest, x), donate_argnums=(0,))
