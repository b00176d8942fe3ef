"""`hloscope diff A B`: what differs between two targets, and whether the second is worse."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.cli.examine import Request as Opening
from hloscope.cli.examine import Settings, no_collector, open_request, report_of, settle
from hloscope.cli.output import HtmlOutput, JsonOutput, check_timeout, refuse_one_place, write_text
from hloscope.cli.shares import parse_share
from hloscope.errors import UserError
from hloscope.report.diff import Diff, compare
from hloscope.report.diff_side import Side, is_report, read_side, side_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_WORSE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope diff`."""

    before: str
    after: str
    topology: str | None = None
    module: str | None = None
    valid_fraction: float | None = None
    chip_figures: str | None = None
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    config: str | None = None
    json: str | None = None
    html: str | None = None
    fail_on: str | None = None
    tolerance: str = "1%"
    everything: bool = False
    fresh: bool = False
    timeout: float | None = None
    quiet: bool = False


def run(request: Request) -> int:
    """Compare, write, and return the exit code. What can be refused is refused before a compile."""
    if request.fail_on not in (None, "regression"):
        raise UserError(f"--fail-on takes regression, not {request.fail_on!r}")
    tolerance = parse_share(request.tolerance)
    check_timeout(request.timeout)
    refuse_one_place(request.before, request.after, json=request.json, html=request.html)
    targets = (request.before, request.after)
    # Settings of both before a compile of either.
    sides = [None if is_report(t) else settle(_opening(request, t), gate=False) for t in targets]
    with no_collector(), JsonOutput(request.json) as output, HtmlOutput(request.html) as page:
        diff = compare(*(_side(request, t, s) for t, s in zip(targets, sides, strict=True)))
        worse = diff.regressions(tolerance)
        if page.wanted:
            page.write_whole(diff.to_html(tolerance))
        if output.wanted:
            output.write_json({**diff.to_dict(), "regressions": list(worse)})
        if not output.is_standard:
            write_text(lambda width: _page(diff, width, request.everything, worse), sys.stdout)
    if worse and request.fail_on:
        print(f"failed: worse in {len(worse)} of what is compared", file=sys.stderr)
    return _WORSE if worse and request.fail_on else 0


def _opening(request: Request, target: str) -> Opening:
    """The request to analyze one side, with the rules and their settings as `analyze` has them."""
    return Opening(
        target=target,
        topology=request.topology,
        module=request.module,
        valid_fraction=request.valid_fraction,
        chip_figures=request.chip_figures,
        select=request.select,
        ignore=request.ignore,
        config=request.config,
        fresh=request.fresh,
        timeout=request.timeout,
        quiet=request.quiet,
    )


def _side(request: Request, target: str, settings: Settings | None) -> Side:
    """A JSON report is read, anything else analyzed. Raises CompileError for a step that does not compile."""
    if settings is None:
        return read_side(target)
    opening = _opening(request, target)
    opened, failure = open_request(opening)
    if failure is not None:
        raise failure
    return side_of(report_of(opened, opening, settings).to_dict(), target)


def _page(diff: Diff, width: int, everything: bool, worse: tuple[str, ...]) -> RenderableType:
    from hloscope.report.text_diff import render

    return render(diff, width=width, everything=everything, regressions=worse)
