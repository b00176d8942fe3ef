"""`hloscope explain CODE`: a rule's own docs."""

from __future__ import annotations

import sys

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.markdown import Markdown
from rich.table import Table

from hloscope.cli.output import ReportOutput, write_text
from hloscope.engine import get_rule
from hloscope.errors import UserError
from hloscope.report.rule_page import rule_page, spelled
from hloscope.report.terminal import indented, words
from hloscope.rule import OPTIONS_HEADING, Rule

_WIDEST = 100


def explain(code: str, *, markdown: bool = False) -> None:
    """Print what a rule looks for, why, and what to do. Raises UserError if there is no such rule."""
    rule = get_rule(code)
    if not rule.doc:
        if rule.plugin and not sys.flags.optimize:
            raise UserError(
                f"rule {rule.code} of the plug-in {rule.plugin} has no docs: its check has no docstring"
            )
        raise UserError(
            "Python has left out the docs of the rules (-OO, PYTHONOPTIMIZE=2): run hloscope without that"
        )
    if markdown:
        ReportOutput("-").write_whole(rule_page(rule))
    else:
        write_text(lambda width: _page(rule), sys.stdout)


def _page(rule: Rule) -> Group:
    title = words((rule.code, "yellow"), "  ", (rule.name, "bold"), (f"  {rule.severity.value}", "dim"))
    parts: list[RenderableType] = [title, words(), words(rule.summary)]
    # Headings are not left to rich, whose releases place them differently.
    for heading, text in rule.sections.items():
        shown = _options(rule) if heading == OPTIONS_HEADING else Markdown(text, code_theme="ansi_dark")
        parts += [words(), words((heading, "bold")), indented(shown)]
    if rule.plugin:
        parts += [words(), words((f"from the plug-in {rule.plugin}", "dim"))]
    return Group(*(Constrain(part, _WIDEST) for part in parts))


def _options(rule: Rule) -> Table:
    """Each option as it is set in `[tool.hloscope.rules.CODE]`, with its default."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for option in rule.options:
        grid.add_row(
            words((f"{option.name} = {spelled(option)}", "cyan")), words(option.kind), words(option.doc)
        )
    return grid
