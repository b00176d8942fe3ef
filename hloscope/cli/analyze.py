"""`hloscope analyze`: a target in, a report out, an exit code for CI."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.examine import Request, examine, no_collector, settle
from hloscope.cli.output import HtmlOutput, JsonOutput, refuse_one_place, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.report.model import Report

_FOUND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is written where: files for JSON and HTML; `everything` cuts no table of the text short,
    `kernels` shows the Pallas kernels in it."""

    json: str | None = None
    html: str | None = None
    everything: bool = False
    kernels: bool = False


def run(request: Request, form: Form) -> int:
    """Analyze, write, and return the exit code. What can be refused is refused before a compile."""
    with no_collector():
        refuse_one_place(
            request.target, json=form.json, html=form.html, write_baseline=request.write_baseline
        )
        settings = settle(request, gate=False)
        with JsonOutput(form.json) as output, HtmlOutput(form.html) as page:
            verdict, failure = examine(request, settings)
            _write(verdict.report, form, output, page)
        if failure is not None:
            raise failure
        for reason in verdict.reasons:
            print(f"failed: {reason}", file=sys.stderr)
        return 0 if verdict.passed else _FOUND


def _write(report: Report, form: Form, output: JsonOutput, page: HtmlOutput) -> None:
    if page.wanted:
        page.write(report)
    if output.wanted:
        output.write(report)
    if output.is_standard:
        return
    from hloscope.report.terminal import NARROWEST
    from hloscope.report.text import render

    def make(width: int) -> RenderableType:
        return render(report, width=width, everything=form.everything, kernels=form.kernels)

    write_text(make, sys.stdout, narrowest=NARROWEST)
    for kind, place in ((output.kind, form.json), (page.kind, form.html)):
        if place is not None and sys.stdout.isatty():
            print(f"{kind}: {Path(place)}", file=sys.stderr)
