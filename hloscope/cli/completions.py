"""What the shell offers after TAB where files are not meant. Nothing is imported before a shell asks."""

from __future__ import annotations


def rule_codes(typed: str) -> list[tuple[str, str]]:
    """Codes that begin as typed, with the rule's name."""
    from hloscope.engine import load_rules

    return [(r.code, r.name) for r in load_rules() if r.code.startswith(typed.upper())]


def topologies(typed: str) -> list[str]:
    """A shape of each chip."""
    from hloscope.capture.topology_names import suggest
    from hloscope.devices import chips

    shapes = (suggest(name) for name in chips())
    return [shape for shape in shapes if shape is not None and shape.startswith(typed)]
