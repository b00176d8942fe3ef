"""The verdict on the terminal: what was looked at, budgets, findings, what a baseline accepts."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from hloscope.report.terminal import cut, words
from hloscope.report.text import budgets, header
from hloscope.report.text_findings import accepted, findings
from hloscope.report.verdict import Verdict


def render(verdict: Verdict, *, width: int, everything: bool = False) -> Group:
    """The verdict, to be drawn `width` columns wide; `everything` cuts no list short."""
    report = verdict.report
    sections = (
        header(report.target, width),
        budgets(report.budgets),
        findings(report.findings, everything, report.held),
        accepted(report.held, everything),
        _said(verdict),
    )
    blocks = [list(section) for section in sections]
    parts = [part for block in blocks if block for part in (words(), *block)]
    return Group(*parts[1:])


def _said(verdict: Verdict) -> Iterator[RenderableType]:
    if verdict.passed:
        yield words(("passed", "bold green"))
    for reason in verdict.reasons:
        yield words(("failed", "bold red"), f"  {cut(reason, 300)}")
