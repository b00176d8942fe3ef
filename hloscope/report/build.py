"""From a target to its report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.ragged import valid_rows
from hloscope.analysis.step_kernels import step_kernels
from hloscope.devices import chips, with_figures
from hloscope.engine import RuleSettings, chosen_rules, judging, run_rules
from hloscope.errors import UserError
from hloscope.hlo.compiler_schedule import read_schedule
from hloscope.report.identity import chip_of, identify
from hloscope.report.model import Ragged, Report
from hloscope.report.overrun import overrun
from hloscope.report.target import Opened, is_step, open_artifact, open_hlo
from hloscope.report.views import CensusView, CollectivesView, Findings, MemoryView

if TYPE_CHECKING:
    from hloscope.capture import Event
    from hloscope.plan import Plan


def load(
    target: str | os.PathLike[str],
    *,
    topology: str | None = None,
    module: str | None = None,
    valid_fraction: float | None = None,
    chip_figures: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """The report of a step file (`train_step.py:name`, compiled if need be), a dump folder or a `.hlo.pb`.

    `topology` is what to compile a step for, or what a dump was compiled for, which it does not tell itself;
    `module` chooses among a folder's modules; `valid_fraction` (0 to 1] is the share of ragged rows that hold
    tokens; `chip_figures` names a TOML file with a user's figures of chips; `select` and `ignore` are rule codes.
    Raises UserError and CompileError.

    Examples:
        >>> import hloscope as hs
        >>> report = hs.load("tests/data/qwen3_0p6b_dense.hlo.pb.gz", topology="v6e:2x4", select=["HS203", "HS301"])
        >>> report
        Report(jit_train_step, v6e:2x4, total 1.2 GiB, peak 1.1 GiB, 3 findings)
        >>> [finding.code for finding in report.findings]
        ['HS203', 'HS203', 'HS301']
    """
    opened = open_target(os.fspath(target), topology=topology, module=module)
    return build_report(
        opened,
        topology=topology,
        valid_fraction=valid_fraction,
        chip_figures=chip_figures,
        select=select,
        ignore=ignore,
    )


def open_target(
    target: str,
    *,
    topology: str | None = None,
    module: str | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    arguments: Sequence[str] = (),
    plan: Plan | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Opened:
    """Compile a step, `plan` applied to it, or read what holds HLO. Raises UserError and CompileError."""
    if not is_step(target):
        if arguments:
            raise UserError(f"{target} is no script: it takes no arguments ({' '.join(arguments)})")
        if plan is not None:
            raise UserError(f"--plan is for steps: {target} is compiled already")
        return open_hlo(target, module=module)
    if module is not None:
        raise UserError(f"--module is for dumps; choose a step with {target.split(':')[0]}:NAME")
    from hloscope.capture import capture_step

    artifact = capture_step(
        target,
        topology=topology,
        timeout=timeout,
        fresh=fresh,
        arguments=arguments,
        plan=plan,
        on_event=on_event,
    )
    return open_artifact(artifact, target)


def build_report(
    opened: Opened,
    *,
    topology: str | None = None,
    valid_fraction: float | None = None,
    chip_figures: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    settings: Mapping[str, RuleSettings] | None = None,
) -> Report:
    """Analyze a target's module and run the rules. See `load` and `run_rules` for the arguments."""
    analyses = _analyses(opened, topology, valid_fraction, chip_figures)
    findings = run_rules(analyses, select=select, ignore=ignore, settings=settings)
    return Report(
        target=identify(opened, analyses, topology),
        module=analyses.module,
        memory=MemoryView.of(analyses.memory),
        census=CensusView.of(analyses.census),
        collectives=CollectivesView.of(analyses.collectives),
        time=analyses.step_time,
        kernels=step_kernels(analyses),
        ragged_buffers=tuple(Ragged(buffer=b, valid=valid_rows(analyses, b)) for b in analyses.rows.buffers),
        findings=Findings.of(findings),
        judged=judging(analyses, chosen_rules(select, ignore)),
        overrun=overrun(analyses.memory, findings),
    )


def analyses_of(opened: Opened, *, topology: str | None = None) -> Analyses:
    """The analyses of a target with all that is known about it, and no rules run."""
    return _analyses(opened, topology, None, None)


def check_valid_fraction(value: float | None) -> None:
    """Raises UserError unless `value` is None or above 0 and at most 1."""
    if value is not None and not (math.isfinite(value) and 0 < value <= 1):
        raise UserError(f"the valid fraction is a share of rows, above 0 and at most 1, not {value:g}")


def _analyses(
    opened: Opened, topology: str | None, valid_fraction: float | None, chip_figures: str | None
) -> Analyses:
    check_valid_fraction(valid_fraction)
    artifact, file = opened.artifact, opened.file
    chip = chip_of(opened, topology)
    known = chips().get(chip or "")
    limit = artifact.hbm_limit_bytes if artifact else None
    schedule = read_schedule(artifact.schedule_path) if artifact and artifact.schedule_path else None
    if known and schedule:  # the compiler's own word on the clock; a user's figures go above it
        known = replace(known, clock_hz=schedule.clock_hz)
    told = artifact.valid_fraction if artifact else None
    return Analyses(
        file.module,
        buffer_assignment=file.buffer_assignment,
        stats=artifact.memory_stats if artifact else None,
        mesh=artifact.mesh_axes if artifact else None,
        mesh_device_ids=artifact.mesh_device_ids if artifact else None,
        hbm_limit_bytes=limit or (known.usable_bytes if known else None),
        parameter_names=artifact.parameter_names if artifact else (),
        valid_fraction=told if valid_fraction is None else valid_fraction,
        valid_fraction_source="option"
        if valid_fraction is not None
        else "step"
        if told is not None
        else None,
        chip=with_figures(known, chip_figures) if known and chip_figures else known,
        topology=artifact.topology if artifact else opened.beside.topology or topology,
        device_coordinates=artifact.device_coordinates if artifact else None,
        wraps=artifact.wraps if artifact else None,
        compiler_warnings=artifact.warnings if artifact else (),
        compiler_schedule=schedule,
    )
