"""The replayed peak and the sums against `memory_analysis()` of a compile of our own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hloscope.analysis.memory import Memory, analyze_memory
from hloscope.capture.artifact import MemoryStats
from hloscope.hlo import read_hlo

# Two layers' worth of a training step: a rematerialized scan of matmuls, momentum, donated state.
COMPILE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

out, rows, width, layers = sys.argv[1], *map(int, sys.argv[2:])
topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
mesh = Mesh(np.array(topology.devices), ("x",))

def loss(params, x):
    def layer(h, w):
        return jax.nn.relu(h @ w).astype(h.dtype), None
    h, _ = jax.lax.scan(jax.checkpoint(layer), x, params["w"])
    return jnp.sum((h @ params["head"]).astype(jnp.float32) ** 2)

def step(params, mu, x):
    grads = jax.grad(loss)(params, x)
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, mu, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, mu), mu

def struct(shape, dtype, *spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

params = {
    "w": struct((layers, width, width), jnp.float32, None, "x", None),
    "head": struct((width, 8 * width), jnp.float32, "x", None),
}
x = struct((rows, width), jnp.bfloat16, "x", None)
lowered = jax.jit(step, donate_argnums=(0, 1)).lower(params, params, x)
compiled = lowered.compile(compiler_options={"xla_dump_to": out, "xla_dump_hlo_as_proto": True})
stats = compiled.memory_analysis()
print(json.dumps({
    "argument_bytes": stats.argument_size_in_bytes,
    "output_bytes": stats.output_size_in_bytes,
    "alias_bytes": stats.alias_size_in_bytes,
    "temp_bytes": stats.temp_size_in_bytes,
    "generated_code_bytes": stats.generated_code_size_in_bytes,
    "peak_bytes": stats.peak_memory_in_bytes,
    "total_bytes": getattr(stats, "total_allocation_bytes", None),
}))
"""


def compiled(folder: Path, *sizes: int) -> tuple[Memory, MemoryStats]:
    """The memory of a compiled step of rows, width and layers, with and beside the compiler's own figures."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs jax with libtpu")
    cpu_only = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [sys.executable, "-c", COMPILE, str(folder), *map(str, sizes)]
    run = subprocess.run(command, env={**os.environ, **cpu_only}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    stats = MemoryStats(**json.loads(run.stdout.splitlines()[-1]))
    file = read_hlo(next(folder.glob("*jit_step*.after_optimizations.hlo.pb")))
    return analyze_memory(file.module, file.buffer_assignment, stats=stats), stats


@pytest.mark.tpu_compile
def test_every_figure_is_the_compilers(tmp_path: Path) -> None:
    memory, stats = compiled(tmp_path, 65536, 4096, 8)
    assert memory.disagreements == ()
    assert memory.peak_bytes == stats.peak_bytes == sum(b.bytes for b in memory.buffers_at_peak)
    assert memory.temp_bytes == stats.temp_bytes
    labels = {b.label for b in memory.buffers_at_peak if b.kind == "argument"}
    assert {"params['w']", "params['head']", "x"} <= labels


@pytest.mark.tpu_compile
def test_a_step_that_lives_in_vmem_has_an_hbm_peak_within_its_total(tmp_path: Path) -> None:
    memory, stats = compiled(tmp_path, 2048, 1024, 4)
    assert memory.peak_bytes is not None
    assert memory.total_bytes is not None
    assert memory.peak_bytes <= memory.total_bytes
    # Here the compiler's own figure counts VMEM: more than the HBM that it says it needs in all.
    assert stats.peak_bytes is not None
    assert stats.peak_bytes > memory.total_bytes
    assert len(memory.disagreements) == 1
    assert memory.disagreements[0].startswith("peak_bytes: the compiler says")
