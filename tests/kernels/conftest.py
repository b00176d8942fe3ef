"""The row kernels are tested on the CPU, whatever the machine has."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
