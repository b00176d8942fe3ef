"""The page of a rule in the docs, made of its docstring: Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.rule import OPTIONS_HEADING, Option, OptionValue, Rule
from hloscope.units import size


def rule_page(rule: Rule) -> str:
    """Code, name, severity, the docs under their headings, and the options in a table."""
    parts = [f"# {rule.code} {rule.name}", f"Severity: {rule.severity.value}.", rule.summary]
    for heading, text in rule.sections.items():
        parts.append(f"## {heading}\n\n{_table(rule.options) if heading == OPTIONS_HEADING else text}")
    return "\n\n".join(parts) + "\n"


def rule_index(rules: Iterable[Rule]) -> str:
    """The list of all pages."""
    rows = [
        f"| [{r.code}]({r.code}.md) | {r.severity.value} | {r.name} | {r.summary.replace('|', chr(92) + '|')} |"
        for r in rules
    ]
    lead = (
        "Made from the rules' docstrings by `make rule-docs`; do not edit. `hloscope explain CODE` prints a page, "
        "[working with findings](../findings.md) tells how severities and options are set."
    )
    return "\n".join(
        [
            "# Rules",
            "",
            lead,
            "",
            "| code | severity | name | what it finds |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def spelled(option: Option, value: OptionValue | None = None) -> str:
    """A value (the default, if it is None), as it is written in the settings."""
    shown = option.default if value is None else value
    if option.kind == "size" and isinstance(shown, int):
        return size(shown)
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


def _table(options: Iterable[Option]) -> str:
    rows = [f"| `{o.name}` | {o.kind} | {spelled(o)} | {o.doc} |" for o in options]
    return "\n".join(["| option | takes | default | what it is |", "|---|---|---|---|", *rows])
