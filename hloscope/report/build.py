"""From a target to its report."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.ragged import valid_rows
from hloscope.capture import Topology, capture_step, topology_names
from hloscope.engine import run_rules
from hloscope.errors import UserError
from hloscope.hlo import Module
from hloscope.report.devices import chips
from hloscope.report.model import Ragged, Report, Target
from hloscope.report.target import Opened, is_step, open_artifact, open_hlo

if TYPE_CHECKING:
    from hloscope.capture import Artifact, Event

_SHAPE = re.compile(r"\d+(?:x\d+)*")
# Platforms and chips that can be named, but of which `devices.toml` knows nothing.
_WITHOUT_FIGURES = ("cpu", "v2", "v3")


def load(
    target: str | os.PathLike[str],
    *,
    topology: str | None = None,
    module: str | None = None,
    valid_fraction: float | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """The report of a step file (`train_step.py:name`, compiled if need be), a dump folder or a `.hlo.pb`.

    `topology` is what to compile a step for, or what a dump was compiled for, which it does not tell itself;
    `module` chooses among a folder's modules; `valid_fraction` (0 to 1] is the share of ragged rows that hold
    tokens; `select` and `ignore` are rule codes. Raises UserError and CompileError.
    """
    opened = open_target(os.fspath(target), topology=topology, module=module)
    return build_report(
        opened, topology=topology, valid_fraction=valid_fraction, select=select, ignore=ignore
    )


def open_target(
    target: str,
    *,
    topology: str | None = None,
    module: str | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Opened:
    """Compile a step, or read what holds HLO. Raises UserError and CompileError."""
    if not is_step(target):
        return open_hlo(target, module=module)
    if module is not None:
        raise UserError(f"--module is for dumps; choose a step with {target.split(':')[0]}:NAME")
    artifact = capture_step(target, topology=topology, timeout=timeout, fresh=fresh, on_event=on_event)
    return open_artifact(artifact, target)


def build_report(
    opened: Opened,
    *,
    topology: str | None = None,
    valid_fraction: float | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> Report:
    """Analyze a target's module and run the rules. See `load` for the arguments."""
    analyses = _analyses(opened, topology, valid_fraction)
    findings = run_rules(analyses, select=select, ignore=ignore)
    return Report(
        target=_target(opened, analyses, topology),
        memory=analyses.memory,
        census=analyses.census,
        collectives=analyses.collectives,
        ragged_buffers=tuple(Ragged(buffer=b, valid=valid_rows(analyses, b)) for b in analyses.rows.buffers),
        findings=tuple(findings),
    )


def check_valid_fraction(value: float | None) -> None:
    """Raises UserError unless `value` is None or above 0 and at most 1."""
    if value is not None and not (math.isfinite(value) and 0 < value <= 1):
        raise UserError(f"the valid fraction is a share of rows, above 0 and at most 1, not {value:g}")


def _analyses(opened: Opened, topology: str | None, valid_fraction: float | None) -> Analyses:
    check_valid_fraction(valid_fraction)
    artifact, file = opened.artifact, opened.file
    chip = _chip(artifact, topology)
    known = chips().get(chip or "")
    limit = artifact.hbm_limit_bytes if artifact else None
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
    )


def _chip(artifact: Artifact | None, topology: str | None) -> str | None:
    if artifact is not None:
        return artifact.chip
    return None if topology is None else chip_of_topology(topology)


def chip_of_topology(topology: str) -> str:
    """The chip that a topology's name says. Raises UserError if it says none; jax is not asked."""
    chip = Topology(topology).chip
    if chip in chips() or chip in _WITHOUT_FIGURES:
        return chip
    raise UserError(topology_names.refusal(topology, "no such chip"))


def _target(opened: Opened, analyses: Analyses, topology: str | None) -> Target:
    artifact, module = opened.artifact, analyses.module
    return Target(
        source=opened.source,
        hlo_file=str(opened.file.path),
        module=module.name,
        platform=artifact.platform if artifact else _platform(module),
        chip=_chip(artifact, topology),
        devices=artifact.num_devices if artifact else module.num_partitions,
        topology=artifact.topology if artifact else topology,
        mesh=(artifact.mesh_axes if artifact else None) or analyses.collectives.mesh,
        instructions=module.instruction_count,
        scheduled=module.is_scheduled,
        status=artifact.status if artifact else "ok",
        error=artifact.error if artifact else None,
        compile_seconds=artifact.compile_seconds if artifact else None,
        versions=artifact.versions if artifact else {},
        flags=artifact.flags if artifact else {},
        compiler_options=artifact.compiler_options if artifact else {},
        warnings=(
            *opened.notes,
            *_doubts(artifact, module, topology),
            *(artifact.warnings if artifact else ()),
        ),
        valid_fraction=analyses.valid_fraction,
        valid_fraction_source=analyses.valid_fraction_source,
    )


def _platform(module: Module) -> str | None:
    """Only a TPU's layouts have tiles; what has none may be anything."""
    layouts = (leaf.layout for p in module.entry.parameters for _, leaf in p.shape.leaves())
    return "tpu" if any(layout is not None and layout.tiles for layout in layouts) else None


def _doubts(artifact: Artifact | None, module: Module, topology: str | None) -> tuple[str, ...]:
    """What does not fit between a dump and the topology that it is said to be for."""
    if artifact is not None or topology is None or module.num_partitions is None:
        return ()
    chip, shape = chips().get(chip_of_topology(topology)), _SHAPE.fullmatch(topology.rpartition(":")[2])
    if chip is None or shape is None:
        return ()
    devices = math.prod(map(int, shape[0].split("x"))) * chip.devices_per_chip
    if devices == module.num_partitions:
        return ()
    return (f"{topology} has {devices} devices, but the module is for {module.num_partitions}",)
