"""`hloscope rules`: every rule on a line, with what the project has set."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.table import Table

from hloscope.cli.output import write_text
from hloscope.config import find_config
from hloscope.engine import RuleSettings, load_rules
from hloscope.report.rule_page import spelled
from hloscope.report.terminal import words
from hloscope.rule import OptionValue, Rule


def rules() -> None:
    """Print code, severity, name, summary and options of every rule, as the settings of this folder have them."""
    settings = find_config(Path.cwd()).rules
    table = Table("code", "severity", "name", "what it finds", box=None, pad_edge=False, header_style="dim")
    table.padding = (0, 2, 0, 0)
    for rule in load_rules():
        _add(table, rule, settings.get(rule.code, RuleSettings()))
    write_text(lambda width: table, sys.stdout)


def _add(table: Table, rule: Rule, settings: RuleSettings) -> None:
    severity = settings.severity or rule.severity
    table.add_row(rule.code, severity.value, rule.name, words(rule.summary))
    for option in rule.options:
        value: OptionValue | None = settings.options.get(option.name)
        shown = (
            spelled(option) if value is None else f"{spelled(option, value)}, {spelled(option)} by default"
        )
        table.add_row("", "", words((f"  {option.name}", "dim")), words((shown, "dim")))
