"""What the compiler says of how a collective goes over the links: the rings of one that a SparseCore runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hloscope.analysis.work import collective_opcode

if TYPE_CHECKING:
    from hloscope.hlo import Module

_AXIS = re.compile(rb"ICI_RING_DIM_([XYZ])_(TORUS|MESH)")
_RINGS = b"color_strategies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """How a SparseCore goes about a collective: `phases` one after another, each around rings of its own.

    `flat_links` are the links of one ring through the whole group, one for each of its directions; None where the
    phases go along axes of the torus.
    """

    phases: int
    flat_links: int | None


def rings_of(config: bytes) -> Rings | None:
    """The rings of a collective that a SparseCore runs, from its configuration; None of any other.

    It lists its "colors", each a share of the data on a way of its own, as phases. A phase that names no axis of the
    torus is a ring through all of the group, one color for each of its directions.
    """
    if _RINGS not in config:
        return None
    try:
        colors = [color for strategy in _found(json.loads(config), "color_strategies") for color in strategy]
        phases = [color["phase_rings"] for color in colors]
        flat = all(len(p) == 1 and not any(key.endswith("ring_dim") for key in p[0]) for p in phases)
        longest = max(map(len, phases), default=0)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Rings(phases=longest, flat_links=len(colors) if flat else None) if longest else None


def told_wraps(module: Module) -> dict[str, bool]:
    """Axes of the torus that a module's collectives name, and whether their ends are joined."""
    configs = (i.proto.backend_config for i in module.instructions if collective_opcode(i.opcode))
    named = {match for config in configs if _RINGS in config for match in _AXIS.findall(config)}
    return {axis.decode().lower(): kind == b"TORUS" for axis, kind in sorted(named)}


def _found(value: object, key: str) -> list[Any]:
    """Every value under a key, at any depth of objects."""
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, Any]", value)
    here = [fields[key]] if key in fields else []
    return here + [found for inner in fields.values() for found in _found(inner, key)]
