"""Compiles `ragged_dot` and its gradients for an H100 that is not there; prints what the module calls, as JSON."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloscope_kernels.ragged_dot import ragged_dot
from hloscope_kernels.ragged_dot.shapes import TRITON_BEST

# An H100 SXM in the terms of XLA's `GpuTargetConfigProto`.
CONFIG = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def value_and_gradients(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> tuple[jax.Array, ...]:
    out, pull = jax.vjp(lambda x, w: ragged_dot(x, w, sizes, implementation="pallas_gpu"), lhs, rhs)
    return out, *pull(out)


def main() -> None:
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="h100", topology="1x1x1", target_config=CONFIG
    )
    mesh = Mesh(np.array(topology.devices), ("x",), axis_types=(AxisType.Auto,))
    whole, shape = NamedSharding(mesh, PartitionSpec()), TRITON_BEST
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        operands = [
            jax.ShapeDtypeStruct((shape.m, shape.k), jnp.bfloat16, sharding=whole),
            jax.ShapeDtypeStruct((shape.groups, shape.k, shape.n), jnp.bfloat16, sharding=whole),
            jax.ShapeDtypeStruct((shape.groups,), jnp.int32, sharding=whole),
        ]
        lowered = jax.jit(value_and_gradients).lower(*operands)
        text = lowered.compile(compiler_options={"xla_gpu_autotune_level": 0}).as_text()
    targets = re.findall(r'custom_call_target="([^"]+)"', text)
    print(json.dumps({"device": topology.devices[0].device_kind, "targets": targets}))


if __name__ == "__main__":
    main()
