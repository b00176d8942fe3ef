"""What is known of each chip: `devices.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Published figures of a chip; a device is what jax calls one."""

    name: str
    hbm_bytes: int  # of the chip
    devices_per_chip: int

    @property
    def device_hbm_bytes(self) -> int:
        """HBM of one device, in bytes."""
        return self.hbm_bytes // self.devices_per_chip


@cache
def chips() -> dict[str, Chip]:
    """Every chip with known figures, by name."""
    table = tomllib.loads(resources.files("hloscope").joinpath("devices.toml").read_text())
    return {name: Chip(name=name, **figures) for name, figures in table.items()}
