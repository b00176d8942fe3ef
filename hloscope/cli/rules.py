"""`hloscope rules`: every rule on a line."""

from __future__ import annotations

import sys

from rich.table import Table

from hloscope.cli.output import write_text
from hloscope.engine import load_rules


def rules() -> None:
    """Print code, severity, name and summary of every rule."""
    table = Table("code", "severity", "name", "what it finds", box=None, pad_edge=False, header_style="dim")
    table.padding = (0, 2, 0, 0)
    for rule in load_rules():
        table.add_row(rule.code, rule.severity.value, rule.name, rule.summary)
    write_text(lambda width: table, sys.stdout)
