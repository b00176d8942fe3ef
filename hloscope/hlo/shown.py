"""How notebooks show what is in this room. Whoever draws it is asked by name: nothing here depends on a renderer."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_RENDERER = "hloscope.report.html.cells"


def drawn(value: object, how: str) -> str:
    """The HTML of a value, made by that function of the renderer."""
    renderer: Any = import_module(_RENDERER)
    return getattr(renderer, how)(value)
