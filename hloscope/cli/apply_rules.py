"""`hloscope apply-rules`: findings into actions, each compiled and measured, and the plan of what helped."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloscope.cli.output import HtmlOutput, JsonOutput, check_timeout, refuse_one_place, write_text
from hloscope.cli.progress import progress
from hloscope.cli.shares import parse_share
from hloscope.errors import CompileError, HloscopeError, UserError
from hloscope.report.verdict import parse_codes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.planner.run import Planner, Proposal
    from hloscope.report.planned import Planned

OBJECTIVES = ("temp", "time")
VERIFY_ON = "cpu:8"

_HOST = re.compile(r"cpu:[1-9][0-9]{0,3}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope apply-rules`, as it was typed."""

    target: str
    topology: str | None = None
    dry_run: bool = False
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    objective: str = "temp"
    tolerance: str | None = None
    unsafe_fixes: bool = False
    save: str | None = None
    explain: bool = False
    verify: bool = False
    verify_on: str = VERIFY_ON
    json: str | None = None
    html: str | None = None
    valid_fraction: float | None = None
    chip_figures: str | None = None
    fresh: bool = False
    timeout: float | None = None
    quiet: bool = False


def run(request: Request) -> int:
    """Plan, write, and return the exit code. What can be refused is refused before a compile."""
    from hloscope.devices import read_figures
    from hloscope.planner.run import Options, Planner
    from hloscope.report.build import check_valid_fraction
    from hloscope.report.target import is_step

    if not is_step(request.target):
        raise UserError(f"{request.target} is no step file: only a step can be changed and compiled again")
    if request.objective not in OBJECTIVES:
        raise UserError(f"--objective {request.objective}: write {' or '.join(OBJECTIVES)}")
    check_valid_fraction(request.valid_fraction)
    if request.chip_figures is not None:
        read_figures(request.chip_figures)
    select, ignore = parse_codes(request.select, "--select"), parse_codes(request.ignore, "--ignore")
    _check_rules(select, ignore)
    _check_place(request.save)
    refuse_one_place(request.target, json=request.json, html=request.html, save=request.save)
    check_timeout(request.timeout)
    _check_verification(request)
    options = Options(
        topology=request.topology,
        select=select,
        ignore=ignore,
        objective=request.objective,
        trade=None if request.tolerance is None else parse_share(request.tolerance),
        unsafe=request.unsafe_fixes,
        valid_fraction=request.valid_fraction,
        chip_figures=request.chip_figures,
        timeout=request.timeout,
        fresh=request.fresh,
    )
    with (
        JsonOutput(request.json) as output,
        HtmlOutput(request.html) as page,
        progress(quiet=request.quiet) as on_event,
    ):
        begin = _silent if request.quiet else _tell
        planner = Planner(target=request.target, options=options, begin=begin, on_event=on_event)
        planned, proposal, failure = _plan(planner, request)
        if output.wanted:
            output.write_json(planned.to_dict())
        if page.wanted:
            page.write_whole(planned.to_html())
    if not output.is_standard:
        _write(planned, proposal, request, failure)
    if failure is not None:
        raise failure
    return _verdict(planned)


def _check_rules(select: Sequence[str], ignore: Sequence[str]) -> None:
    """UserError for codes of which nothing could come: no compile is needed to know."""
    from hloscope.engine import chosen_rules
    from hloscope.planner.candidates import has_action

    chosen = [rule.code for rule in chosen_rules(select, ignore)]
    if not any(map(has_action, chosen)):
        some = ", ".join(rule.code for rule in chosen_rules() if has_action(rule.code))
        raise UserError(f"apply-rules has no action for {', '.join(chosen)}: it has some for {some}")


def _check_verification(request: Request) -> None:
    """UserError where a plan is to be verified or saved and there will be none, or nowhere to do it."""
    for name, wanted in (("--save", request.save is not None), ("--verify", request.verify)):
        if request.dry_run and wanted:
            raise UserError(f"--dry-run tries nothing, so that {name} has no plan: leave one of them out")
    if request.verify_on != VERIFY_ON and not request.verify:
        raise UserError("--verify-on says where --verify runs the steps: write --verify too")
    if not _HOST.fullmatch(request.verify_on):
        raise UserError(
            f"--verify-on {request.verify_on}: only the host can run a step: write cpu:8 or the like"
        )


def _verdict(planned: Planned) -> int:
    """The exit code: 1 where the changed step computes something else."""
    if planned.verification is None or planned.verification["ok"]:
        return 0
    print("failed: the changed step does not compute what the original does", file=sys.stderr)
    return 1


def _plan(planner: Planner, request: Request) -> tuple[Planned, Proposal, HloscopeError | None]:
    """What was tried and kept; and what stood in the way of verifying it, or why the step does not compile still."""
    from hloscope.planner.run import carry_out, propose
    from hloscope.report.planned import Planned

    proposal = propose(planner)
    outcome = None if request.dry_run else carry_out(planner, proposal)
    actions = () if outcome is None else outcome.plan.actions
    verification: dict[str, Any] | None = None
    failure: HloscopeError | None = None
    if outcome is not None and actions and request.verify:
        try:
            verification = planner.verify(outcome.plan, request.verify_on)
        except HloscopeError as error:  # raised once what was measured is written
            failure = error
    sound = failure is None and (verification is None or verification["ok"])
    if outcome is not None and actions and sound and request.save is not None:
        outcome.plan.save(request.save)
    planned = Planned(
        report=proposal.report,
        candidates=proposal.candidates,
        skipped=proposal.skipped,
        notes=proposal.notes(explained=request.explain),
        outcome=outcome,
        verification=verification,
    )
    if proposal.report.target.status == "failed" and not actions:
        failure = failure or CompileError(proposal.report.target.error or "the compile failed")
    return planned, proposal, failure


def _check_place(save: str | None) -> None:
    if save is None:
        return
    place = Path(save)
    if place.is_dir() or not place.absolute().parent.is_dir():
        raise UserError(f"cannot write the plan to {save}: it is a folder, or its folder is not there")


def _tell(number: int, what: str) -> None:
    print(f"compile {number}: {what}", file=sys.stderr, flush=True)


def _silent(number: int, what: str) -> None:
    del number, what


def _write(planned: Planned, proposal: Proposal, request: Request, failure: HloscopeError | None) -> None:
    from rich.console import Group

    from hloscope.report.terminal import NARROWEST
    from hloscope.report.text_planned import explain, render

    def make(width: int) -> RenderableType:
        text = render(planned, width=width)
        return Group(text, explain(proposal.described.proofs)) if request.explain else text

    write_text(make, sys.stdout, narrowest=NARROWEST)
    outcome = planned.outcome
    if request.save is not None and outcome is not None:
        # The share is no part of a plan, and without it the times of the changed step are those of all rows.
        told = request.valid_fraction
        share = (
            "" if told is None else f" (measured with --valid-fraction {told:g}: analyze --plan needs it too)"
        )
        saved = (
            f"plan: {request.save}{share}"
            if outcome.plan.actions
            else "no plan was written: nothing was kept"
        )
        if planned.verification is not None and not planned.verification["ok"]:
            saved = "no plan was written: it does not verify"
        elif failure is not None and outcome.plan.actions:
            saved = "no plan was written: it could not be verified"
        print(saved, file=sys.stderr)
