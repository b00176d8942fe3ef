"""What is known of each chip: `devices.toml`, and what a user knows better."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from pkgutil import get_data
from typing import Any, cast

from hloscope.errors import UserError
from hloscope.files import read_toml

# Elements of 32 bits in a vector register: 8 sublanes of 128 lanes on every chip (jax._src.tpu_info).
VECTOR_ELEMENTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Vector instructions that one core can issue in a cycle, by kind."""

    arithmetic: int
    transcendental: int
    load: int
    store: int


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
    start_seconds: float  # what a collective takes beside its hops and bytes
    sparsecore_start_seconds: float  # the same of each phase of one that a SparseCore runs
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
    """Figures of a chip; a device is what jax calls one. Rates are of one device, None is unknown.
    `devices.toml` has their sources; `figures_from` names the file that changed some, if one did."""

    name: str
    hbm_bytes: int  # of the chip
    devices_per_chip: int
    usable_bytes: int  # what the compiler lets a program have on one device
    ici: Ici
    cores: int  # of a device
    clock_hz: float
    hbm_bytes_per_second: float
    bf16_per_second: float  # matrix operations, two for a multiplication with its addition
    int8_per_second: float | None = None
    fp8_per_second: float | None = None
    slots: Slots | None = None
    hbm_efficiency: float = 1.0
    matrix_efficiency: float = 1.0
    operation_seconds: float | None = None  # what an operation through HBM takes beside its bytes and work
    measured: tuple[str, ...] = ()  # terms held against measured times: bandwidth, compute, links
    figures_from: str | None = None

    def worth(self, term: str) -> str:
        """What a time bound by a term is worth, in words: whose figures, or whether they were held against a clock."""
        if self.figures_from:
            return f"figures of {self.figures_from}"
        # Vector work and latencies were held against the same times as the bandwidth.
        held = "bandwidth" if term in ("issue", "latency") else term
        return f"{'checked' if held in self.measured else 'not calibrated'} on {self.name}"


# What a file may set: the rates and shares, not what the compiler knows about memory.
_SETTABLE = {
    "clock_hz", "hbm_bytes_per_second", "bf16_per_second", "int8_per_second", "fp8_per_second",
    "hbm_efficiency", "matrix_efficiency", "ici_efficiency", "dcn_bytes_per_second",
}  # fmt: skip
_SHARES = {"hbm_efficiency", "matrix_efficiency", "ici_efficiency"}
# Figures of the links, by their names in `Ici`.
_OF_LINKS = {"ici_efficiency": "efficiency", "dcn_bytes_per_second": "dcn_bytes_per_second"}


@cache
def chips() -> dict[str, Chip]:
    """Every chip with known figures, by name."""
    table = tomllib.loads((get_data("hloscope", "devices.toml") or b"").decode())
    return {name: _chip(name, figures) for name, figures in table.items()}


def _chip(name: str, figures: Mapping[str, Any]) -> Chip:
    own = dict(figures)
    slots, ici, measured = own.pop("slots", None), own.pop("ici"), own.pop("measured", ())
    return Chip(
        name=name,
        slots=None if slots is None else Slots(**slots),
        ici=Ici(**ici),
        measured=tuple(measured),
        **own,
    )


def with_figures(chip: Chip, path: str) -> Chip:
    """The chip with a user's figures from a TOML file (see `read_figures`)."""
    figures = read_figures(path).get(chip.name)
    if figures is None:
        return chip
    own = {name: value for name, value in figures.items() if name not in _OF_LINKS}
    links = {_OF_LINKS[name]: value for name, value in figures.items() if name in _OF_LINKS}
    return replace(chip, **own, ici=replace(chip.ici, **links), figures_from=Path(path).name)


def read_figures(path: str) -> dict[str, dict[str, float]]:
    """A user's figures by chip from a TOML file: a table by the chip's name, e.g. `[v6e]` with
    `hbm_efficiency = 0.8`. Raises UserError if the file cannot be read or says what cannot be."""
    table = read_toml(path, f"the file of chip figures {path}")
    unknown = set(table) - set(chips())
    if unknown:
        raise UserError(f"{path}: there is no chip {min(unknown)!r}; there are {', '.join(chips())}")
    # Every chip's figures are checked, so that a mistake is not found by another run only.
    return {name: _checked(path, name, figures) for name, figures in table.items()}


def _checked(path: str, name: str, figures: object) -> dict[str, float]:
    if not isinstance(figures, dict):
        raise UserError(f"{path}: {name} is to be a table, [{name}], with a line for each figure")
    found: dict[str, float] = {}
    for key, value in cast("dict[str, object]", figures).items():
        if key not in _SETTABLE:
            names = ", ".join([*(f.name for f in fields(Chip) if f.name in _SETTABLE), *_OF_LINKS])
            raise UserError(f"{path}: [{name}] cannot set {key!r}; it can set {names}")
        figure = _figure(value, most=1.0 if key in _SHARES else math.inf)
        if figure is None:
            wanted = "a share, above 0 and at most 1" if key in _SHARES else "a rate, above 0"
            raise UserError(f"{path}: {key} of [{name}] is {wanted}, not {str(value)[:40]}")
        found[key] = figure
    return found


def _figure(value: object, most: float) -> float | None:
    """The value as a finite number above 0 and at most `most`; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= most and value < math.inf else None
