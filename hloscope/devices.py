"""What is known of each chip: `devices.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Ici:
    """The links between the chips of one slice (inter-chip interconnect). `devices.toml` has the sources.

    A slice is a mesh of `dimensions` dimensions with a link between neighbours. `wrap_size` is the size of an
    axis whose ends are joined too: exactly that size, or, where `wrap_needs_all`, a multiple of it in every axis.
    Speeds are bytes per second in one direction; None is not known.
    """

    dimensions: int
    link_bytes_per_second: float  # of one link, as published
    efficiency: float  # share of it that transfers are seen to reach
    wrap_size: int
    wrap_needs_all: bool
    hop_seconds: float  # latency from one chip to the next
    die_to_die_bytes_per_second: float | None = None  # between the two devices of one chip
    dcn_bytes_per_second: float | None = None  # of one device, to another slice

    def wraps(self, shape: Sequence[int]) -> list[bool]:
        """Which axes of a slice of this shape (chips along each axis) have their ends joined."""
        shape = list(shape)[: self.dimensions]
        if self.wrap_needs_all:
            return [len(shape) == self.dimensions and all(n % self.wrap_size == 0 for n in shape)] * len(
                shape
            )
        return [size == self.wrap_size for size in shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Figures of a chip; a device is what jax calls one. `devices.toml` has their sources."""

    name: str
    hbm_bytes: int  # of the chip
    devices_per_chip: int
    usable_bytes: int  # what the compiler lets a program have on one device
    ici: Ici


@cache
def chips() -> dict[str, Chip]:
    """Every chip with known figures, by name."""
    table = tomllib.loads(resources.files("hloscope").joinpath("devices.toml").read_text())
    return {name: _chip(name, figures) for name, figures in table.items()}


def _chip(name: str, figures: dict[str, Any]) -> Chip:
    own = {key: value for key, value in figures.items() if key != "ici"}
    return Chip(name=name, ici=Ici(**figures["ici"]), **own)
