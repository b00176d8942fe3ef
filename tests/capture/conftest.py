"""Step files that compile in a second, and a store of their own for every test session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from hloscope.capture import Artifact, Event, capture_step

HEADER = """
    import os, signal, sys, time, warnings
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec as P, SingleDeviceSharding
    import hloscope as hs

    def shaped(topology, shape, *spec):
        mesh = topology.mesh(data=topology.num_devices)
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))
"""

TRAIN = """
    def loss(params, batch):
        with jax.named_scope("layer_0"):
            hidden = jax.nn.gelu(batch @ params["wi"])
        with jax.named_scope("layer_1"):
            return ((hidden @ params["wo"]) ** 2).mean()

    def update(params, batch, unused):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    print("printed by the step file")

    @hs.step(topology="v5e:2x4")
    def train_step(topology):
        params = {"wi": shaped(topology, (512, 512), "data"), "wo": shaped(topology, (512, 512), "data")}
        batch = shaped(topology, (64, 512), "data")
        return hs.Step(
            update,
            args=(params, batch, shaped(topology, (8,))),
            donate_argnums=0,
            compiler_options={"xla_tpu_scoped_vmem_limit_kib": 32768},
            valid_fraction=0.5,
        )
"""

WriteStep = Callable[..., str]


@pytest.fixture
def write_step(tmp_path: Path) -> WriteStep:
    """Writes a step file, its body after the usual imports, and gives its path."""

    def write(body: str, name: str = "steps.py", header: str = HEADER) -> str:
        path = tmp_path / name
        path.write_text(dedent(header) + dedent(body))
        return str(path)

    return write


@pytest.fixture(scope="session")
def train_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("train") / "train.py"
    path.write_text(dedent(HEADER) + dedent(TRAIN))
    return str(path)


@pytest.fixture(scope="session")
def trained(train_file: str) -> tuple[Artifact, list[Event]]:
    """The training step compiled once, with the events on the way."""
    events: list[Event] = []
    return capture_step(train_file, on_event=events.append), events
