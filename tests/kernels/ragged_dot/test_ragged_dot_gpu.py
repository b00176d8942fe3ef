"""The GPU kernels as far as a machine without a GPU goes: their Triton programs are made and verified.

What they compute is checked in interpret mode with the other implementations; they are not run on a GPU here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jaxlib.mlir import ir
from jaxlib.triton import dialect

from hloscope_kernels.ragged_dot import explain, pallas_gpu, ragged_dot
from hloscope_kernels.ragged_dot.shapes import TRITON_BEST

# jax 0.12 announces the end of Pallas' way through Triton whenever it is taken.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

M, K, N, GROUPS = 4000, 1000, 520, 16


@contextmanager
def traced_for(device: str) -> Iterator[None]:
    gpu = AbstractDevice(device_kind=device, num_cores=None, platform="gpu")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=gpu)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def triton_programs(module: Any) -> list[bytes]:
    """The Triton programs within a lowered module."""
    found: list[bytes] = []

    def visit(operation: Any) -> Any:
        if "mhlo.backend_config" in operation.attributes:
            found.append(
                ir.StringAttr(ir.DictAttr(operation.attributes["mhlo.backend_config"])["ir"]).value_bytes
            )
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def verify(program: bytes) -> str:
    """Parse and verify a Triton program as XLA will on its way to the GPU; its text."""
    with ir.Context() as context:
        dialect.register_dialect(context)
        context.load_all_available_dialects()
        module = ir.Module.parse(program)
        assert module.operation.verify()
        return str(module)


@pytest.mark.parametrize("operation", ["dot", "transposed", "contraction"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_triton_program(operation: str, dtype: Any) -> None:
    def shaped(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    bounds = jax.ShapeDtypeStruct((GROUPS + 1,), jnp.int32)
    product, operands = {
        "dot": (partial(pallas_gpu.dot, transposed=False), (shaped(M, K), shaped(GROUPS, K, N))),
        "transposed": (partial(pallas_gpu.dot, transposed=True), (shaped(M, N), shaped(GROUPS, K, N))),
        "contraction": (pallas_gpu.contraction, (shaped(M, K), shaped(M, N))),
    }[operation]
    with traced_for("NVIDIA H100 80GB HBM3"):
        traced = jax.jit(partial(product, out_dtype=dtype)).trace(*operands, bounds)
        (program,) = triton_programs(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    text = verify(program)
    assert text.count("tt.dot") == 1
    assert "scf.for" in text


def test_auto_takes_triton_for_the_result_where_it_was_measured_faster() -> None:
    shape = TRITON_BEST
    lhs = jax.ShapeDtypeStruct((shape.m, shape.k), jnp.bfloat16)
    rhs = jax.ShapeDtypeStruct((shape.groups, shape.k, shape.n), jnp.bfloat16)
    sizes = jax.ShapeDtypeStruct((shape.groups,), jnp.int32)

    def loss(x: jax.Array, w: jax.Array, s: jax.Array) -> jax.Array:
        return jnp.sum(ragged_dot(x, w, s).astype(jnp.float32))

    with traced_for("NVIDIA A100-SXM4-80GB"):
        assert explain(lhs, rhs).startswith("result: pallas_gpu")
        traced = jax.jit(jax.grad(loss, (0, 1))).trace(lhs, rhs, sizes)
        programs = triton_programs(traced.lower(lowering_platforms=("cuda",)).compiler_ir())
    assert len(programs) == 2  # both gradients; the result itself is not needed for them


PLUGIN = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


@pytest.mark.skipif(
    not (PLUGIN and shutil.which("ptxas")),
    reason="needs jax's CUDA plugin and ptxas (pip install jax[cuda13-local], and CUDA's compiler)",
)
def test_all_three_kernels_compile_to_machine_code_without_a_gpu() -> None:
    """In a process of its own: the plugin would look for a GPU in this one."""
    worker = Path(__file__).with_name("gpu_worker.py")
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(worker)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout.splitlines()[-1])
    assert answer["device"] == "NVIDIA H100 80GB HBM3"
    assert answer["targets"] == ["__gpu$xla.gpu.triton"] * 3
