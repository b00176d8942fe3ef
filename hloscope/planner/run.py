"""From a step to a plan whose every action was compiled: the planner's way through capture, rules and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hloscope.capture import Event
from hloscope.capture.launch import ask_step, capture_step
from hloscope.errors import CompileError, UserError
from hloscope.plan import Plan, to_fields
from hloscope.planner.candidates import Candidate, Described, candidates
from hloscope.planner.judge import Objective
from hloscope.planner.measured import Measured, measure, ragged_rows
from hloscope.planner.search import Outcome, search
from hloscope.report.build import build_report
from hloscope.report.model import Report
from hloscope.report.target import open_artifact, open_hlo
from hloscope.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a planner is told besides the step. `select` and `ignore` are rule codes."""

    topology: str | None = None
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    objective: Objective = "temp"
    unsafe: bool = False
    valid_fraction: float | None = None
    timeout: float | None = None
    fresh: bool = False


# Of the values that a step is verified on: any will do, the same ones each time.
_SEED = 20

# Told that a compile begins (its number, what it is of), and of every stage of it.
Begin = Callable[[int, str], None]


@dataclass(slots=True, kw_only=True)
class Planner:
    """One step on its way to a plan. Every compile goes through `compile`, and is told first to `begin`."""

    target: str
    options: Options
    begin: Begin
    on_event: Callable[[Event], None] | None = None
    compiles: int = 0

    def compile(self, plan: Plan, what: str) -> Report:
        """The report of the step with a plan applied; of what a failed compile left, if it left anything."""
        self.compiles += 1
        self.begin(self.compiles, what)
        options = self.options
        try:
            artifact = capture_step(
                self.target,
                topology=options.topology,
                timeout=options.timeout,
                fresh=options.fresh,
                plan=plan,
                on_event=self.on_event,
            )
            opened = open_artifact(artifact, self.target)
        except CompileError as error:
            if error.dump_dir is None:
                raise
            opened = replace(open_hlo(error.dump_dir), source=self.target)
        return build_report(
            opened, valid_fraction=options.valid_fraction, select=options.select, ignore=options.ignore
        )

    def describe(self) -> Described:
        """What the planner has to know of the step itself."""
        told = ask_step(self.target, "describe", topology=self.options.topology, timeout=self.options.timeout)
        return Described.of(told)

    def verify(self, plan: Plan, topology: str) -> dict[str, Any]:
        """What the step and its changed form return on the host, compared (`rewrite.verify`)."""
        options = {"plan": to_fields(plan), "seed": _SEED}
        self.compiles += 1
        self.begin(self.compiles, f"both on {topology}, compared")
        return ask_step(
            self.target,
            "verify",
            options=options,
            topology=topology,
            timeout=self.options.timeout,
            on_event=self.on_event,
        )

    def attempt(self, plan: Plan, what: str, rows: frozenset[int]) -> Measured | str:
        """The figures of the step with a plan; a text where it cannot be applied or compiled at all."""
        try:
            return measure(self.compile(plan, what), rows)
        except (UserError, CompileError) as error:
            return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A step's report, and what could be tried on it; `skipped` are unsafe candidates that were not asked for."""

    report: Report
    described: Described
    candidates: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found, but cannot be tried, in lines."""
        tried = {code for c in (*self.candidates, *self.skipped) for code in c.codes}
        codes = sorted({f.code for f in self.report.findings} - tried)
        broken = [c for c in self.described.clusters if c.refusal is not None]
        notes = [f"{', '.join(codes)}: no action is known that could be tried"] if codes else []
        if broken:
            notes.append(f"{plural(len(broken), 'cluster')} of row-wise work not proved: --explain")
        return tuple(notes)


def propose(planner: Planner) -> Proposal:
    """Compile the step as it is and list what could be tried. Raises UserError and CompileError."""
    report = planner.compile(Plan(), "as it is")
    described = planner.describe()
    found = candidates(report.findings, described)
    return Proposal(
        report=report,
        described=described,
        candidates=tuple(c for c in found if c.safe or planner.options.unsafe),
        skipped=tuple(c for c in found if not c.safe and not planner.options.unsafe),
    )


def carry_out(planner: Planner, proposal: Proposal) -> Outcome:
    """Try all that was proposed."""
    rows = ragged_rows(proposal.report)
    outcome = search(
        measure(proposal.report, rows),
        proposal.candidates,
        lambda plan, what: planner.attempt(plan, what, rows),
        planner.options.objective,
    )
    target = proposal.report.target
    return replace(outcome, plan=replace(outcome.plan, step=planner.target, topology=target.topology))
