"""What the shell offers after TAB where files are not meant. Nothing is imported before a shell asks."""

from __future__ import annotations

from click import Command, Context, Parameter
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")


def source(command: Command, shell: str) -> str:
    """The script that makes a shell of `SHELLS` ask `hloscope` what may follow."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(command, {}, "hloscope", "_HLOSCOPE_COMPLETE").source()


def rule_codes(context: Context, parameter: Parameter, typed: str) -> list[CompletionItem]:
    """Codes that begin as typed, with the rule's name."""
    from hloscope.engine import load_rules

    return [CompletionItem(r.code, help=r.name) for r in load_rules() if r.code.startswith(typed.upper())]


def topologies(context: Context, parameter: Parameter, typed: str) -> list[str]:
    """A shape of each chip."""
    from hloscope.capture.topology_names import suggest
    from hloscope.devices import chips

    shapes = (suggest(name) for name in chips())
    return [shape for shape in shapes if shape is not None and shape.startswith(typed)]
