"""Eight host devices in this process, and the examples importable as they are when run by path.

Set while tests are collected: jax takes the number of host devices only before it first runs something.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import Mesh

import hloscope as hs

EXAMPLES = Path(__file__).parents[2] / "examples"

sys.path.insert(0, str(EXAMPLES))
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def host() -> hs.Topology:
    return hs.Topology("cpu:8")


@pytest.fixture(scope="session")
def mesh(host: hs.Topology) -> Mesh:
    return host.mesh(fsdp=2, expert=4)
