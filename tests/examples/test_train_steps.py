"""The small configurations train on eight host devices; the large ones have the shapes they claim."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import moe_train_step
import numpy as np
import pytest
import qwen_moe_397b
from _training import abstract_state, initial_state, shardings
from jax.sharding import AbstractMesh, AxisType, Mesh

import hloscope as hs

NAMES = ("dense_train_step", "moe_train_step", "qwen_moe_397b")


def small_parameters(example: ModuleType) -> Any:
    second = example.SMALL_MLP if hasattr(example, "SMALL_MLP") else example.SMALL_EXPERTS
    return example.parameters(example.SMALL_TRUNK, second)


def batch_like(abstract: Any, vocab: int) -> Any:
    shape = abstract["inputs"].shape
    ids = jax.random.randint(jax.random.key(1), (shape[0], shape[1] + 1), 0, vocab)
    return jax.device_put({"inputs": ids[:, :-1], "targets": ids[:, 1:]}, shardings(abstract))


@pytest.mark.parametrize("name", NAMES)
def test_loss_falls(name: str, host: hs.Topology) -> None:
    example = importlib.import_module(name)
    step = example.train_step(host)
    state_like, batch_shape = step.args
    state = initial_state(small_parameters(example), state_like.steps.sharding.mesh)
    batch = batch_like(batch_shape, example.SMALL_TRUNK.vocab)
    compiled = jax.jit(step.fn, donate_argnums=step.donate_argnums, out_shardings=step.out_shardings)
    losses: list[float] = []
    for _ in range(3):
        state, value = compiled(state, batch)
        losses.append(float(value))
    assert np.isfinite(losses).all()
    # Near ln(vocab) to start with, then down at each step.
    assert abs(losses[0] - np.log(example.SMALL_TRUNK.vocab)) < 1
    assert losses[0] > losses[1] > losses[2]
    assert int(state.steps) == 3
    assert shardings(state) == step.out_shardings[0]


def test_dead_rows_change_no_bit_of_loss_and_gradients(host: hs.Topology, mesh: Mesh) -> None:
    example = moe_train_step
    params = initial_state(small_parameters(example), mesh).params
    batch = batch_like(example.train_step(host).args[1], example.SMALL_TRUNK.vocab)

    def run(dead_rows: float) -> list[np.ndarray]:
        experts = replace(example.SMALL_EXPERTS, dead_rows=dead_rows)
        loss = example.loss(example.SMALL_TRUNK, experts, mesh)
        return [
            np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(params, batch))
        ]

    for harmless, poisoned in zip(run(7.0), run(float("nan")), strict=True):
        assert np.isfinite(poisoned).all()
        np.testing.assert_array_equal(poisoned.view(np.uint32), harmless.view(np.uint32))


def test_the_397b_buffer_has_the_published_rows() -> None:
    trunk, experts = qwen_moe_397b.TRUNK, qwen_moe_397b.EXPERTS
    group_tokens = trunk.batch * trunk.sequence // 16
    assert group_tokens == 65_536
    assert experts.buffer_rows(group_tokens, 8) == 225_280
    mesh: Any = AbstractMesh((16, 8), ("fsdp", "expert"), axis_types=(AxisType.Auto, AxisType.Auto))
    params = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        abstract_state(moe_train_step.parameters(trunk, experts), mesh).params,
    )
    ids = jax.ShapeDtypeStruct((trunk.batch, trunk.sequence), jnp.int32)
    loss = moe_train_step.loss(trunk, experts, mesh)
    traced = str(jax.make_jaxpr(loss)(params, {"inputs": ids, "targets": ids}))
    for shape in ("bf16[225280,4096]", "bf16[225280,2048]", "bf16[225280,1024]"):
        assert shape in traced


def test_the_397b_model_has_about_as_many_parameters() -> None:
    parameters = moe_train_step.parameters(qwen_moe_397b.TRUNK, qwen_moe_397b.EXPERTS)
    leaves = jax.tree.leaves(parameters, is_leaf=lambda leaf: hasattr(leaf, "spec"))
    assert 0.97 < sum(int(np.prod(leaf.shape)) for leaf in leaves) / 397e9 < 1.03


LOWER = """
import importlib, sys
import jax, hloscope as hs
step = importlib.import_module(sys.argv[1]).train_step(hs.Topology(sys.argv[2]))
traced = jax.jit(step.fn, donate_argnums=step.donate_argnums, out_shardings=step.out_shardings)
print(traced.lower(*step.args).as_text().count("mhlo.num_partitions"))
"""


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("name", "topology"), [*((name, "tpu7x:2x2x1") for name in NAMES[:2]), (NAMES[2], "tpu7x:4x4x4")]
)
def test_lowers_for_its_topology(name: str, topology: str) -> None:
    tpu = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", LOWER, name, topology],
        env={**os.environ, **tpu, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
