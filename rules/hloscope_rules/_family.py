"""What rules share: places of one pattern, folded into one finding with its price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.place import Phase, provenance
from hloscope.analysis.sums import times, total
from hloscope.hlo import Instruction, async_operation, is_async_start
from hloscope.rule import Finding, Fix, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place of a pattern. `moved` and `saved` are HBM bytes of one execution; None is unknown.

    `instruction` stands in the step and tells how often the place runs; `also` are the others of the pattern.
    `time_share` is the part of its time that would be saved: the saved part of what it moves, unless told.
    """

    instruction: Instruction
    moved: int | None
    saved: int | None
    also: tuple[Instruction, ...] = ()
    time_share: float | None = None


def fold(
    analyses: Analyses,
    code: str,
    severity: Severity,
    title: str,
    sites: Sequence[Site],
    *,
    advice: str,
    details: Iterable[str] = (),
    facts: Mapping[str, Any] | None = None,
    held: int | None = None,
    fix: Fix = "none",
) -> Finding:
    """One finding for places that are alike, in module order; figures count all executions of a step.

    `held` is the memory that they hold at the peak, in all.
    """
    runs = [analyses.module.executions(s.instruction.computation) for s in sites]
    pairs = list(zip(sites, runs, strict=True))
    return Finding(
        code=code,
        severity=severity,
        title=title,
        instructions=tuple(dict.fromkeys(i for s in sites for i in (s.instruction, *s.also))),
        places=len(sites),
        source=provenance(sites[0].instruction).source,
        executions=total(runs),
        bytes=total(times(n, s.moved) for s, n in pairs),
        saved_bytes=total(times(n, s.saved) for s, n in pairs),
        saved_seconds=total(times(n, _saved_seconds(analyses, s)) for s, n in pairs),
        fix=fix,
        advice=advice,
        details=tuple(details),
        facts=facts or {},
        held_bytes=held,
    )


def _saved_seconds(analyses: Analyses, site: Site) -> float | None:
    """Seconds that one execution would save, by the estimate of what its instruction takes: all of it, or a part of
    what depends on its bytes and work."""
    share = site.time_share
    if share is None:
        share = min(1.0, site.saved / site.moved) if site.saved is not None and site.moved else None
    start = site.instruction
    work = async_operation(start).work if is_async_start(start.opcode) else start
    cost = analyses.costs.of(work)
    if share is None or cost.seconds is None:
        return None
    return cost.seconds if share == 1 else share * (cost.seconds - cost.latency_seconds)


def in_phase(phase: str) -> str:
    """The part of the step for the end of a phrase, ` backward`; nothing where it is not known or outside of them."""
    return "" if phase in (Phase.UNKNOWN.value, Phase.OTHER.value) else f" {phase}"


def over_axes(collective: Collective) -> str:
    """The mesh axes of a collective for a phrase, ` over fsdp and expert`; the size of its groups where they have no
    names, nothing where that is not known either."""
    if collective.mesh_axes:
        return f" over {' and '.join(collective.mesh_axes)}"
    return f" over groups of {collective.group_size}" if collective.group_size else ""


def place_text(collective: Collective) -> str:
    """Where a collective works and in which part of the step, ` over fsdp backward`, as far as it is known."""
    return over_axes(collective) + in_phase(collective.phase)
