"""From a step to a plan whose every action was compiled: the planner's way through capture, rules and search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hloscope.capture import Event
from hloscope.capture.launch import ask_step, capture_step
from hloscope.engine import chosen_rules
from hloscope.errors import CompileError, UserError
from hloscope.plan import Plan, to_fields
from hloscope.planner.candidates import ROWS_CODES, Candidate, Described, candidates
from hloscope.planner.judge import Objective
from hloscope.planner.measured import Measured, measure, ragged_rows
from hloscope.planner.pool import at_once, room_for
from hloscope.planner.search import Outcome, search
from hloscope.report.build import build_report
from hloscope.report.model import Report
from hloscope.report.target import Opened, left_behind, open_artifact
from hloscope.units import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a planner is told besides the step. `select` and `ignore` are rule codes, `trade` is the share that
    figures of the other objective may lose; `judge` has it if it is None."""

    topology: str | None = None
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    objective: Objective = "temp"
    trade: float | None = None
    unsafe: bool = False
    valid_fraction: float | None = None
    chip_figures: str | None = None
    timeout: float | None = None
    fresh: bool = False


# Of the values that a step is verified on: any will do, the same ones each time.
_SEED = 20

# Told that a compile begins (its number, what it is of), and of every stage of it.
Begin = Callable[[int, str], None]
OnEvent = Callable[[Event], None]


@dataclass(slots=True, kw_only=True)
class Planner:
    """One step on its way to a plan. Every compile is told first to `begin`.

    `worker_bytes` is the memory that the compile of the step as it is took of this machine, None if unknown.
    """

    target: str
    options: Options
    begin: Begin
    on_event: OnEvent | None = None
    compiles: int = 0
    worker_bytes: int | None = None

    def compile(self, plan: Plan, what: str) -> Report:
        """The report of the step with a plan applied; of what a failed compile left, if it left anything."""
        return self._report(self._open(plan, what, self._number(), self.on_event, None))

    def attempt(self, wanted: Sequence[tuple[Plan, str]], rows: frozenset[int]) -> list[Measured | str]:
        """The figures of the step with each plan; a text where one cannot be applied or compiled at all.

        They are compiled side by side where there is room, and their stages are told with their numbers then.
        """
        workers = room_for(len(wanted), self.worker_bytes)
        jobs = [partial(self._open_or_why, *each, self._number(), workers > 1) for each in wanted]
        opened = at_once(jobs, workers)
        return [each if isinstance(each, str) else measure(self._report(each), rows) for each in opened]

    def _number(self) -> int:
        self.compiles += 1
        return self.compiles

    def _open_or_why(
        self, plan: Plan, what: str, number: int, beside_others: bool, stop: threading.Event
    ) -> Opened | str:
        on_event = _numbered(self.on_event, number) if beside_others else self.on_event
        try:
            return self._open(plan, what, number, on_event, stop)
        except (UserError, CompileError) as error:
            return str(error)

    def _open(
        self, plan: Plan, what: str, number: int, on_event: OnEvent | None, stop: threading.Event | None
    ) -> Opened:
        self.begin(number, what)
        options = self.options
        try:
            artifact = capture_step(
                self.target,
                topology=options.topology,
                timeout=options.timeout,
                fresh=options.fresh,
                plan=plan,
                on_event=on_event,
                stop=stop,
            )
        except CompileError as error:
            return left_behind(self.target, error)
        if not plan.actions:
            self.worker_bytes = artifact.worker_peak_bytes
        return open_artifact(artifact, self.target)

    def _report(self, opened: Opened) -> Report:
        options = self.options
        return build_report(
            opened,
            valid_fraction=options.valid_fraction,
            chip_figures=options.chip_figures,
            select=options.select,
            ignore=options.ignore,
        )

    def describe(self) -> Described:
        """What the planner has to know of the step itself."""
        told = ask_step(self.target, "describe", topology=self.options.topology, timeout=self.options.timeout)
        return Described.of(told)

    def verify(self, plan: Plan, topology: str) -> dict[str, Any]:
        """What the step and its changed form return on the host, compared (`rewrite.verify`)."""
        options = {"plan": to_fields(plan), "seed": _SEED}
        self.begin(self._number(), f"both on {topology}, compared")
        return ask_step(
            self.target,
            "verify",
            options=options,
            topology=topology,
            timeout=self.options.timeout,
            on_event=self.on_event,
        )


def _numbered(on_event: OnEvent | None, number: int) -> OnEvent | None:
    return None if on_event is None else lambda event: on_event(replace(event, number=number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A step's report by the rules with the codes `rules`, and what could be tried on it; `skipped` are unsafe
    candidates that were not asked for."""

    report: Report
    rules: frozenset[str]
    described: Described
    candidates: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]

    def notes(self, *, explained: bool) -> tuple[str, ...]:
        """What was found, but cannot be tried, in lines; `explained` if the verdicts on row-wise work are shown."""
        tried = {code for c in (*self.candidates, *self.skipped) for code in c.codes}
        codes = sorted({f.code for f in self.report.findings} - tried)
        broken = [c for c in self.described.clusters if c.refusal is not None]
        notes = [f"{', '.join(codes)}: no action is known that could be tried"] if codes else []
        if broken and not explained and self.rules & ROWS_CODES:
            notes.append(f"{plural(len(broken), 'cluster')} of row-wise work not proved: --explain")
        return tuple(notes)


def propose(planner: Planner) -> Proposal:
    """Compile the step as it is and list what could be tried. Raises UserError and CompileError."""
    report = planner.compile(Plan(), "as it is")
    planner.options = replace(planner.options, valid_fraction=known_fraction(planner.options, report))
    described = planner.describe()
    found = candidates(report.findings, described)
    return Proposal(
        report=report,
        rules=frozenset(rule.code for rule in chosen_rules(planner.options.select, planner.options.ignore)),
        described=described,
        candidates=tuple(c for c in found if c.safe or planner.options.unsafe),
        skipped=tuple(c for c in found if not c.safe and not planner.options.unsafe),
    )


def known_fraction(options: Options, report: Report) -> float | None:
    """The share of valid rows that a changed step is measured with: what was told, else what all buffers of the
    step as it is have, since a change may hide from the analysis what the program proves."""
    if options.valid_fraction is not None:
        return options.valid_fraction
    known = {r.valid.fraction for r in report.ragged_buffers}
    return known.pop() if len(known) == 1 else None


def carry_out(planner: Planner, proposal: Proposal) -> Outcome:
    """Try all that was proposed."""
    rows = ragged_rows(proposal.report)
    outcome = search(
        measure(proposal.report, rows),
        proposal.candidates,
        partial(planner.attempt, rows=rows),
        planner.options.objective,
        trade=planner.options.trade,
    )
    target = proposal.report.target
    return replace(outcome, plan=replace(outcome.plan, step=planner.target, topology=target.topology))
