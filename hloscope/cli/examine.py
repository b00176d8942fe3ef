"""What `analyze` and `check` share: settings, a target opened or compiled, its report held against limits."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.new_baseline import NewBaseline
from hloscope.cli.output import check_timeout
from hloscope.cli.progress import progress
from hloscope.config import Config, find_config, read_config
from hloscope.devices import read_figures
from hloscope.engine import RuleSettings, chosen_rules, load_rules
from hloscope.errors import CompileError, UserError
from hloscope.report.baseline import Baseline, StepName, read_baseline, removed
from hloscope.report.budgets import Limit, parse_limit, parse_limits
from hloscope.report.build import build_report, check_valid_fraction, open_target
from hloscope.report.escape import printable
from hloscope.report.target import Opened, is_step, left_behind
from hloscope.report.verdict import FailOn, Verdict, judge, parse_fail_on, split_codes
from hloscope.rule import Severity

if TYPE_CHECKING:
    from hloscope.plan import Plan
    from hloscope.report.model import Report
    from hloscope.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line, as it was typed."""

    target: str
    topology: str | None = None
    module: str | None = None
    valid_fraction: float | None = None
    chip_figures: str | None = None
    fail_on: Sequence[str] = ()
    budgets: Sequence[str] = ()
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    baseline: str | None = None
    write_baseline: str | None = None
    config: str | None = None
    fresh: bool = False
    plan: str | None = None
    timeout: float | None = None
    quiet: bool = False
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for a run: the command line, and what it leaves open from the project's settings."""

    rules: tuple[Rule, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    rule_settings: Mapping[str, RuleSettings]
    limits: Mapping[str, Limit]
    fail_on: FailOn
    baseline: Baseline | None


def settle(request: Request, *, gate: bool) -> Settings:
    """The settings of a run. With `gate`, the project's budgets and `fail-on` count too, and warnings fail.

    Raises UserError for all that can be refused before a compile.
    """
    check_valid_fraction(request.valid_fraction)
    if request.baseline is not None and not request.baseline.strip():
        raise UserError("--baseline is empty: name a file, or leave it out")
    if request.chip_figures is not None:
        read_figures(request.chip_figures)
    check_timeout(request.timeout)
    config = _config(request)
    select = _codes("select", request.select, config.select, config)
    ignore = _codes("ignore", request.ignore, config.ignore, config)
    rules = chosen_rules(select, ignore)
    limits = _that_run(_on_rules(parse_limits(request.budgets)), rules)
    if gate:
        # What the project limits of rules that are left out this time is not looked at, and not shown as kept.
        theirs = _project_limits(config).items()
        limits = {n: limit for n, limit in theirs if not limit.of_rules or _runs(n, rules)} | limits
    return Settings(
        rules=rules,
        select=select,
        ignore=ignore,
        rule_settings=config.rules,
        limits=limits,
        fail_on=_fail_on(request, config, limits, rules, gate=gate),
        baseline=_baseline(request, config),
    )


def _codes(name: str, typed: Sequence[str], written: Sequence[str], config: Config) -> tuple[str, ...]:
    """What was typed, else what stands in the settings."""
    source = f"--{name}" if typed else f"{config.path}: {name}"
    codes = split_codes(typed or written, source)
    for code in codes:
        if not any(rule.code.startswith(code) for rule in load_rules()):
            raise UserError(f"{source}: no rule begins with {code!r}; see: hloscope rules")
    return codes


def _on_rules(limits: dict[str, Limit]) -> dict[str, Limit]:
    """The limits. A limit on findings of a rule that there is not would always be kept: UserError."""
    for limit in limits.values():
        if limit.of_rules and not any(rule.code.startswith(limit.name) for rule in load_rules()):
            raise UserError(f"--budget {limit.name}: no rule begins with {limit.name!r}; see: hloscope rules")
    return limits


def _that_run(limits: dict[str, Limit], rules: Sequence[Rule]) -> dict[str, Limit]:
    """Limits that were typed. One on rules that do not run would always be kept: UserError."""
    for limit in limits.values():
        if limit.of_rules and not _runs(limit.name, rules):
            raise UserError(
                f"--budget {limit.name}: no rule of it runs, by --select, --ignore or the settings"
            )
    return limits


def _runs(code: str, rules: Sequence[Rule]) -> bool:
    return any(rule.code.startswith(code) for rule in rules)


def _config(request: Request) -> Config:
    """The file that was named, else the nearest one: to a step file, then to the current folder."""
    if request.config is not None:
        return read_config(Path(request.config))
    here = Path.cwd()
    if not is_step(request.target):
        return find_config(here)
    return find_config(Path(request.target.rpartition(".py")[0]).absolute().parent, here)


def _project_limits(config: Config) -> dict[str, Limit]:
    try:
        limits: dict[str, Limit] = {}
        for name, text in config.budgets.items():
            limit = parse_limit(name, text)
            if limit.name in limits:
                raise UserError(f"{limit.name} is given twice")
            limits[limit.name] = limit
        return _on_rules(limits)
    except UserError as error:
        raise UserError(f"{config.path}: budgets: {error}") from error


def _fail_on(
    request: Request, config: Config, limits: Mapping[str, Limit], rules: Sequence[Rule], *, gate: bool
) -> FailOn:
    """What was asked for; of a gate without a word, warnings, unless a budget counts findings in its place."""
    known = [r.code for r in load_rules()]
    if request.fail_on or not gate:
        fail_on = parse_fail_on(request.fail_on, known)
        for code in fail_on.codes:
            if not _runs(code, rules):
                raise UserError(
                    f"--fail-on {code}: no rule of it runs, by --select, --ignore or the settings"
                )
        return fail_on
    if config.fail_on:
        return parse_fail_on(config.fail_on, known, f"{config.path}: fail-on")
    counted = any(limit.counts_findings for limit in limits.values())
    return FailOn(severity=None if counted else Severity.WARNING)


def _baseline(request: Request, config: Config) -> Baseline | None:
    place = request.write_baseline
    if place is not None and (request.baseline is None or _same(request.baseline, place)):
        return None  # read when it is written
    chosen = config.baseline if request.baseline is None else request.baseline
    return None if chosen is None else read_baseline(str(chosen))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def examine(request: Request, settings: Settings) -> tuple[Verdict, CompileError | None]:
    """The verdict on a target; the failure too, if it is on what a failed compile left."""
    with NewBaseline(request.write_baseline, settings.baseline) as new:
        try:
            opened, failure = open_request(request)
        except CompileError:
            _tell_unwritten(request)
            raise
        report = report_of(opened, request, settings)
        if failure is None and report.target.status == "failed":
            failure = CompileError(report.target.error or "the compile failed")
        held = _held(report, settings, opened)
        if failure is None:
            # Before a baseline is written: what is refused leaves it as it was.
            held = held.with_budgets(settings.limits)
            if request.write_baseline is not None:
                held = _accepted(report, settings, opened, request.write_baseline, new)
        else:
            _tell_unwritten(request)
        return judge(held, settings.rules, settings.fail_on), failure


def report_of(opened: Opened, request: Request, settings: Settings) -> Report:
    """The report of a target that was opened, as a command line and its settings ask for it."""
    return build_report(
        opened,
        topology=request.topology,
        valid_fraction=request.valid_fraction,
        chip_figures=request.chip_figures,
        select=settings.select,
        ignore=settings.ignore,
        settings=settings.rule_settings,
    )


def _tell_unwritten(request: Request) -> None:
    """Of a compile that failed there is nothing to accept."""
    if request.write_baseline is not None:
        place = printable(request.write_baseline)
        print(f"the baseline {place} is not written: the compile failed", file=sys.stderr)


def _held(report: Report, settings: Settings, opened: Opened) -> Report:
    """The report held against the baseline, if there is one."""
    baseline = settings.baseline
    if baseline is None:
        return report
    step = _step_name(opened, baseline.path, report.target.topology)
    return report.with_baseline(baseline, report.judged, step)


def _accepted(report: Report, settings: Settings, opened: Opened, place: str, new: NewBaseline) -> Report:
    """The report held against a new baseline, which accepts all that is found."""
    step = _step_name(opened, place, report.target.topology)
    older, newer = new.write(report.findings, report.judged, step)
    held = report.with_baseline(newer, report.judged, step, removed=removed(older, newer, step))
    return held.with_budgets(settings.limits)


def _step_name(opened: Opened, baseline: str, topology: str | None) -> StepName:
    """What a target's findings are kept under in a baseline: where its step stands from there, or its module, with
    the topology that it tells or was said to be for."""
    artifact = opened.artifact
    if artifact is None:
        return StepName(name=printable(opened.file.module.name), topology=printable(topology or ""))
    file = Path(os.path.relpath(artifact.source_file, Path(baseline).absolute().parent)).as_posix()
    return StepName(name=printable(f"{file}:{artifact.step_name}"), topology=artifact.topology)


def open_request(request: Request) -> tuple[Opened, CompileError | None]:
    """The target; or what a failed compile left, and the failure. Raises CompileError if it left nothing."""
    if not request.target.strip():
        raise UserError("the target is empty: write a step file, a dump folder or a *.hlo.pb")
    try:
        with progress(quiet=request.quiet or not is_step(request.target)) as on_event:
            opened = open_target(
                request.target,
                topology=request.topology,
                module=request.module,
                timeout=request.timeout,
                fresh=request.fresh,
                arguments=request.arguments,
                plan=_plan(request),
                on_event=on_event,
            )
    except CompileError as error:
        return left_behind(request.target, error), error
    return opened, None


def _plan(request: Request) -> Plan | None:
    if request.plan is None:
        return None
    from hloscope.plan import Plan

    plan = Plan.load(request.plan)
    if not plan.actions:
        print(f"the plan {printable(request.plan)} has no actions: the step stays as it is", file=sys.stderr)
    return plan


@contextmanager
def no_collector() -> Generator[None, None, None]:
    """Without Python's cycle collector: it costs time among many objects, and the process ends soon.

    What is there at the end is left to the system, unless another command follows in the same process.
    """
    enabled = gc.isenabled()
    gc.unfreeze()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
