"""Eight host devices, whatever the machine has; jax takes their number only before it first runs something."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
