"""The TPU that a kernel is traced for, and how much of its VMEM a kernel may take."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.experimental.pallas import tpu as pltpu

# What Mosaic keeps for itself beside the windows of a kernel: semaphores, prefetched scalars, spills.
_MOSAIC_RESERVE = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One device as jax shows it.

    Attributes:
      generation: 4 for v4, 5 for v5e and v5p, 6 for v6e, 7 for tpu7x.
      cores: TensorCores that run one program together (2 in the megacore mode of v5p and v4).
      vmem_bytes: VMEM of one core, in bytes.
    """

    generation: int
    cores: int
    vmem_bytes: int

    @property
    def window_bytes(self) -> int:
        """What the double-buffered windows of one kernel may take, in bytes.

        A quarter of VMEM, but no less than 12 MiB: XLA keeps arrays of its own there, and blocks of
        a few MiB already hide the latency of HBM.
        """
        return max(self.vmem_bytes // 4, 12 << 20)

    def vmem_limit(self, window_bytes: int) -> int:
        """`vmem_limit_bytes` for a kernel whose windows take `window_bytes`, in bytes."""
        return min(self.vmem_bytes, window_bytes + window_bytes // 4 + _MOSAIC_RESERVE)


# What interpret mode on another platform plays: one core, 128 MiB of VMEM.
V6E = Chip(generation=6, cores=1, vmem_bytes=128 << 20)


def tpu_chip() -> Chip | None:
    """The TPU that the current trace is for, or None when it is for another platform.

    A program that is compiled ahead of time must be traced inside
    `jax.sharding.use_abstract_mesh(mesh.abstract_mesh)`, with a mesh over the devices of the
    topology: that is where jax keeps the kind of the device.
    """
    if not pltpu.is_tpu_device():
        return None
    info = pltpu.get_tpu_info()
    return Chip(generation=info.generation, cores=info.num_cores, vmem_bytes=info.vmem_capacity_bytes)


def platform_name() -> str:
    """The platform that a trace without an abstract mesh runs on, for messages."""
    return jax.default_backend()
