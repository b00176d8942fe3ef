"""`hloscope analyze`: a target in, a report out, an exit code for CI."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.checks import FailOn, parse_budgets, parse_codes
from hloscope.cli.output import HtmlOutput, JsonOutput, write_text
from hloscope.cli.progress import progress
from hloscope.devices import read_figures
from hloscope.errors import CompileError, UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.report.model import Report
    from hloscope.report.target import Opened

_FOUND, _FAILED = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope analyze`, as it was typed."""

    target: str
    topology: str | None = None
    module: str | None = None
    json: str | None = None
    html: str | None = None
    valid_fraction: float | None = None
    chip_figures: str | None = None
    fail_on: Sequence[str] = ()
    budgets: Sequence[str] = ()
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    everything: bool = False
    fresh: bool = False
    timeout: float | None = None
    quiet: bool = False
    arguments: Sequence[str] = ()


def run(request: Request) -> int:
    """Analyze, write, and return the exit code. What can be refused is refused before a compile."""
    with _no_collector():
        return _run(request)


@contextmanager
def _no_collector() -> Generator[None, None, None]:
    """Without Python's cycle collector: it costs time among many objects, and the process ends soon."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(request: Request) -> int:
    from hloscope.report.build import build_report, check_valid_fraction

    budgets = parse_budgets(request.budgets)
    fail_on = FailOn.parse(request.fail_on)
    select, ignore = parse_codes(request.select), parse_codes(request.ignore)
    check_valid_fraction(request.valid_fraction)
    if request.chip_figures is not None:
        read_figures(request.chip_figures)
    if request.timeout is not None and not request.timeout > 0:
        raise UserError(f"--timeout takes seconds above 0, not {request.timeout:g}")
    with JsonOutput(request.json) as output, HtmlOutput(request.html) as page:
        opened, failure = _open(request)
        report = build_report(
            opened,
            topology=request.topology,
            valid_fraction=request.valid_fraction,
            chip_figures=request.chip_figures,
            select=select,
            ignore=ignore,
        )
        if failure is None and report.target.status == "failed":
            failure = CompileError(report.target.error or "the compile failed")
        if failure is None:
            report = report.with_budgets(budgets)
        _write(report, request, output, page)
    if failure is not None:
        raise failure
    return _verdict(report, fail_on)


def _verdict(report: Report, fail_on: FailOn) -> int:
    """The exit code, and on standard error why it is not 0."""
    failing = list(dict.fromkeys(f.code for f in report.findings if fail_on.fails(f)))
    exceeded = [b.name for b in report.budgets if b.exceeded]
    if failing:
        print(f"failed: {', '.join(failing)} reached --fail-on", file=sys.stderr)
    if exceeded:
        print(f"failed: over the budget for {', '.join(exceeded)}", file=sys.stderr)
    return _FOUND if failing or exceeded else 0


def _open(request: Request) -> tuple[Opened, CompileError | None]:
    """The target; or what a failed compile left, and the failure. Raises CompileError if it left nothing."""
    from hloscope.report.build import open_target
    from hloscope.report.target import is_step

    try:
        with progress(quiet=request.quiet or not is_step(request.target)) as on_event:
            opened = open_target(
                request.target,
                topology=request.topology,
                module=request.module,
                timeout=request.timeout,
                fresh=request.fresh,
                arguments=request.arguments,
                on_event=on_event,
            )
    except CompileError as error:
        if error.dump_dir is None:
            raise
        return _left_behind(request.target, error), error
    return opened, None


def _left_behind(target: str, error: CompileError) -> Opened:
    from hloscope.report.target import open_hlo

    assert error.dump_dir is not None
    try:
        opened = open_hlo(error.dump_dir)
    except UserError:
        # The dump is of no use: the failure itself is what the user has to see.
        raise error from None
    return replace(opened, source=target)


def _write(report: Report, request: Request, output: JsonOutput, page: HtmlOutput) -> None:
    if page.wanted:
        page.write(report)
    if output.wanted:
        output.write(report)
    if output.is_standard:
        return
    from hloscope.report.terminal import NARROWEST
    from hloscope.report.text import render

    def make(width: int) -> RenderableType:
        return render(report, width=width, everything=request.everything)

    write_text(make, sys.stdout, narrowest=NARROWEST)
    for kind, place in ((output.kind, request.json), (page.kind, request.html)):
        if place is not None and sys.stdout.isatty():
            print(f"{kind}: {Path(place)}", file=sys.stderr)
