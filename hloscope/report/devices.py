"""What is known of each chip: `devices.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Figures of a chip; a device is what jax calls one. `devices.toml` has their sources."""

    name: str
    hbm_bytes: int  # of the chip
    devices_per_chip: int
    usable_bytes: int  # what the compiler lets a program have on one device


@cache
def chips() -> dict[str, Chip]:
    """Every chip with known figures, by name."""
    table = tomllib.loads(resources.files("hloscope").joinpath("devices.toml").read_text())
    return {name: Chip(name=name, **figures) for name, figures in table.items()}
