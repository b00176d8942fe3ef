"""What was looked at: chip, topology, how its compile ended, from whoever knows. No figure is made here."""

from __future__ import annotations

import math
import re

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Memory
from hloscope.capture import Topology, topology_names
from hloscope.devices import chips
from hloscope.errors import UserError
from hloscope.hlo import Module
from hloscope.report.model import Target
from hloscope.report.target import Opened
from hloscope.report.unknown import unknown_words
from hloscope.units import size

_SHAPE = re.compile(r"\d+(?:x\d+)*")
# Platforms and chips that can be named, but of which `devices.toml` knows nothing.
_WITHOUT_FIGURES = ("cpu", "v2", "v3")
# The limits in `devices.toml` are as the compiler prints them, to 0.01 GiB.
_LIMIT_ROUNDING = (1 << 30) // 100
_UNFINISHED = (
    "the compiler generated no code for this module: the compile failed, was ended, or is still going on"
)


def chip_of_topology(topology: str) -> str:
    """The chip that a topology's name says. Raises UserError if it says none; jax is not asked."""
    chip = Topology(topology).chip
    if chip in chips() or chip in _WITHOUT_FIGURES:
        return chip
    raise UserError(topology_names.refusal(topology, "no such chip"))


def chip_of(opened: Opened, topology: str | None) -> str | None:
    """The chip: of the compile, of what the dump tells, else of the topology that the user gave.

    Raises UserError where the user says another than the compile or the dump does.
    """
    known = opened.artifact.chip if opened.artifact else opened.beside.chip
    if topology is None:
        return known
    named = chip_of_topology(topology)
    if known is not None and named != known:
        raise UserError(f"{opened.source} was compiled for {known}, not for {topology}")
    platform = _platform(opened)
    if platform is not None and platform != ("cpu" if named == "cpu" else "tpu"):
        raise UserError(f"{opened.source} holds a module for {platform.upper()}s, not for {topology}")
    return named


def identify(opened: Opened, analyses: Analyses, topology: str | None) -> Target:
    """All that is told about a target before its figures."""
    artifact, beside, module = opened.artifact, opened.beside, analyses.module
    status, error = _ending(opened, analyses.memory, topology)
    return Target(
        source=opened.source,
        hlo_file=str(opened.file.path),
        module=module.name,
        platform=_platform(opened),
        chip=chip_of(opened, topology),
        devices=artifact.num_devices if artifact else module.num_partitions,
        topology=artifact.topology if artifact else beside.topology or topology,
        mesh=(artifact.mesh_axes if artifact else None) or analyses.collectives.mesh,
        instructions=module.instruction_count,
        scheduled=module.is_scheduled,
        status=status,
        error=error,
        compile_seconds=artifact.compile_seconds if artifact else None,
        versions=artifact.versions if artifact else {},
        flags=artifact.flags if artifact else beside.flags,
        compiler_options=artifact.compiler_options if artifact else {},
        warnings=(
            *opened.notes,
            *_doubts(opened, topology),
            *_other_chip(opened, analyses.memory, topology),
            *unknown_words(module),
            *(artifact.warnings if artifact else ()),
        ),
        valid_fraction=analyses.valid_fraction,
        valid_fraction_source=analyses.valid_fraction_source,
    )


def _ending(opened: Opened, memory: Memory, topology: str | None) -> tuple[str, str | None]:
    """`ok` or `failed`, and the line of a failed compile."""
    if opened.artifact is not None:
        return opened.artifact.status, opened.artifact.error
    ending, total, limit = opened.beside.ending, memory.total_bytes, memory.hbm_limit_bytes
    over = total is not None and limit is not None and total > limit + _LIMIT_ROUNDING
    if ending == "out of memory" or (ending is None and over):
        # That it did not fit is proved: a limit that it keeps is not the one that it met.
        has = "" if limit is None or _fits(memory) else f", a program may have {size(limit)}"
        assumed = f" on {topology}" if ending is None else ""
        needs = (
            "more device memory (HBM) than there is"
            if total is None
            else f"{size(total)} of device memory (HBM)"
        )
        return "failed", f"the step does not fit: it needs {needs}{has}{assumed}"
    if ending == "unfinished":
        return "failed", _UNFINISHED
    return "ok", None


def _fits(memory: Memory) -> bool:
    """Whether it is known to keep the limit of the chip."""
    used, limit = memory.total_bytes, memory.hbm_limit_bytes
    return used is not None and limit is not None and used <= limit


def _other_chip(opened: Opened, memory: Memory, topology: str | None) -> tuple[str, ...]:
    """What a compile that ran out of memory proves of a chip that the user gave, which would have had enough."""
    claimed = topology is not None and opened.artifact is None and opened.beside.chip is None
    if not claimed or opened.beside.ending != "out of memory" or not _fits(memory):
        return ()
    return (
        f"the compile ran out of memory, which on {topology} it would not have: this was compiled for another "
        f"chip, and what is said of room and time below is that of {topology}",
    )


def _platform(opened: Opened) -> str | None:
    told = opened.artifact.platform if opened.artifact else opened.beside.platform
    return told or _platform_of(opened.file.module)


def _platform_of(module: Module) -> str | None:
    """Only a TPU's layouts have tiles; what has none may be anything."""
    layouts = (leaf.layout for p in module.entry.parameters for leaf in p.shape.parts)
    return "tpu" if any(layout is not None and layout.tiles for layout in layouts) else None


def _doubts(opened: Opened, topology: str | None) -> tuple[str, ...]:
    """What does not fit between a dump and the topology that it is said to be for."""
    told, module = opened.beside.topology, opened.file.module
    if opened.artifact is not None:
        told = opened.artifact.topology
    # A chip alone claims nothing of the topology; that it is the right one is checked elsewhere.
    if topology is None or topology == told or ":" not in topology:
        return ()
    if told is not None:
        return (f"this was compiled for {told}, not for {topology}",)
    if module.num_partitions is None:
        return ()
    chip, shape = chips().get(chip_of_topology(topology)), _SHAPE.fullmatch(topology.rpartition(":")[2])
    if chip is None or shape is None:
        return ()
    devices = math.prod(map(int, shape[0].split("x"))) * chip.devices_per_chip
    if devices == module.num_partitions:
        return ()
    return (f"{topology} has {devices} devices, but the module is for {module.num_partitions}",)
