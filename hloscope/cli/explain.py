"""`hloscope explain CODE`: a rule's own docs."""

from __future__ import annotations

import sys

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.markdown import Markdown

from hloscope.cli.output import write_text
from hloscope.engine import get_rule
from hloscope.errors import UserError
from hloscope.report.terminal import indented, words
from hloscope.rule import Rule

_WIDEST = 100


def explain(code: str) -> None:
    """Print what a rule looks for, why, and what to do. Raises UserError if there is no such rule."""
    rule = get_rule(code)
    if not rule.doc:
        raise UserError(
            "Python has left out the docs of the rules (-OO, PYTHONOPTIMIZE=2): run hloscope without that"
        )
    write_text(lambda width: _page(rule), sys.stdout)


def _page(rule: Rule) -> Group:
    title = words((rule.code, "yellow"), "  ", (rule.name, "bold"), (f"  {rule.severity.value}", "dim"))
    parts: list[RenderableType] = [title, words(), words(rule.summary)]
    # Headings are not left to rich, whose releases place them differently.
    for heading, text in rule.sections.items():
        parts += [words(), words((heading, "bold")), indented(Markdown(text, code_theme="ansi_dark"))]
    return Group(*(Constrain(part, _WIDEST) for part in parts))
