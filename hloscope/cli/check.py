"""`hloscope check`: a target held against budgets and a baseline, for CI."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.examine import Request, examine, no_collector, settle
from hloscope.cli.formats import Format
from hloscope.cli.output import HtmlOutput, ReportOutput, refuse_one_place, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.report.verdict import Verdict

_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the verdict is written, and where: `output` is a file, None standard output."""

    format: Format = Format.TEXT
    output: str | None = None
    html: str | None = None
    everything: bool = False


def run(request: Request, form: Form) -> int:
    """Check, write, and return the exit code. What can be refused is refused before a compile."""
    with no_collector():
        refuse_one_place(
            request.target, output=form.output, html=form.html, write_baseline=request.write_baseline
        )
        settings = settle(request, gate=True)
        with ReportOutput(form.output) as output, HtmlOutput(form.html) as page:
            verdict, failure = examine(request, settings)
            if page.wanted:
                page.write(verdict.report)
            if output.wanted and not output.is_standard:
                output.write_whole(_text_of(verdict, form))
            if form.format is Format.TEXT or (output.wanted and not output.is_standard):
                write_text(lambda width: _page(verdict, width, form.everything), sys.stdout)
            else:
                ReportOutput("-").write_whole(_text_of(verdict, form))
        if failure is not None:
            raise failure
        for reason in verdict.reasons:
            print(f"failed: {reason}", file=sys.stderr)
        return 0 if verdict.passed else _FAILED


def _text_of(verdict: Verdict, form: Form) -> str:
    makers: dict[Format, Callable[[Verdict], str]] = {
        Format.TEXT: lambda v: _plain(v, form.everything),
        Format.JSON: _json,
        Format.SARIF: _sarif,
        Format.JUNIT: _junit,
        Format.GITHUB: _github,
    }
    return makers[form.format](verdict)


def _plain(verdict: Verdict, everything: bool) -> str:
    from hloscope.report.terminal import draw

    return draw(_page(verdict, 100, everything), 100)


def _page(verdict: Verdict, width: int, everything: bool) -> RenderableType:
    from hloscope.report.text_check import render

    return render(verdict, width=width, everything=everything)


def _json(verdict: Verdict) -> str:
    return json.dumps(verdict.report.to_dict(), indent=1, allow_nan=False) + "\n"


def _sarif(verdict: Verdict) -> str:
    from hloscope.report.places import repository
    from hloscope.report.sarif import to_sarif

    return json.dumps(to_sarif(verdict, repository(Path.cwd())), indent=1, allow_nan=False) + "\n"


def _junit(verdict: Verdict) -> str:
    from hloscope.report.junit import to_junit

    return to_junit(verdict)


def _github(verdict: Verdict) -> str:
    from hloscope.report.github import to_github
    from hloscope.report.places import repository

    return to_github(verdict, repository(Path.cwd()))
