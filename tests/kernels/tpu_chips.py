"""What the tests of kernels take the chips for."""

from __future__ import annotations

from hloscope_kernels.chip import Chip

CHIPS = {
    "v4": Chip(generation=4, cores=1, vmem_bytes=16 << 20),
    "v5e": Chip(generation=5, cores=1, vmem_bytes=128 << 20),
    "v5p": Chip(generation=5, cores=2, vmem_bytes=64 << 20),
    "v6e": Chip(generation=6, cores=1, vmem_bytes=128 << 20),
    "tpu7x": Chip(generation=7, cores=1, vmem_bytes=64 << 20),
}
