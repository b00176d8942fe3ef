"""What the compiler says of how a collective goes over the links: the rings of one that a SparseCore runs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from hloscope.analysis.work import collective_opcode

if TYPE_CHECKING:
    from hloscope.hlo import Module

_AXIS = re.compile(rb"ICI_RING_DIM_([XYZ])_(TORUS|MESH)")
_RINGS = b"color_strategies"


def flat_ring_links(config: bytes) -> int | None:
    """Links that a collective uses if it goes around one ring through its whole group; None of any other.

    A SparseCore collective lists its "colors", each a share of the data on a way of its own, as phases. A phase
    that names no axis of the torus is a ring through all of the group, one color for each of its directions.
    """
    if _RINGS not in config:
        return None
    try:
        colors = [color for strategy in _found(json.loads(config), "color_strategies") for color in strategy]
        phases = [color["phase_rings"] for color in colors]
        flat = all(len(p) == 1 and not any(key.endswith("ring_dim") for key in p[0]) for p in phases)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return len(colors) if colors and flat else None


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
