"""What HS101 and HS102 share: findings of work over a whole ragged buffer, one for each family."""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.place import phase_of, provenance
from hloscope.analysis.ragged import ValidRows, kernel_names, valid_rows
from hloscope.analysis.rows import FullBufferWork, RaggedBuffer, wide_shape
from hloscope.analysis.sums import times, total
from hloscope.rule import Finding, Severity
from hloscope.units import share
from hloscope_rules._family import in_phase

_Site = tuple[RaggedBuffer, FullBufferWork]


def ragged_findings(
    analyses: Analyses, *, code: str, severity: Severity, roles: frozenset[str], what: str, advice: str
) -> Iterator[Finding]:
    """One finding for each family of full-buffer work in `roles`; none where every row is known to be a token."""
    names = {i.id: f.family for f in analyses.census.families for i in f.instructions}
    families: dict[tuple[str, str, str, int, ValidRows], list[_Site]] = {}
    for buffer in analyses.rows.buffers:
        valid = valid_rows(analyses, buffer)
        if valid.fraction == 1.0:
            continue
        for work in buffer.work:
            if work.role in roles:
                name = names.get(work.instruction.id, work.instruction.opcode)
                place = phase_of(work.instruction).value
                key = (name, place, wide_shape(work, buffer.rows), buffer.rows, valid)
                families.setdefault(key, []).append((buffer, work))
    for (name, place, shape, *_), sites in families.items():
        yield _finding(analyses, code, severity, f"{what}: {name}{in_phase(place)} {shape}", advice, sites)


def _finding(
    analyses: Analyses, code: str, severity: Severity, title: str, advice: str, sites: list[_Site]
) -> Finding:
    buffer, first = sites[0]
    valid = valid_rows(analyses, buffer)
    fraction = valid.fraction
    instructions = tuple(work.instruction for _, work in sites)
    row_bytes = total(
        work.row_bytes * runs if runs is not None else None for work, runs in _runs(analyses, sites)
    )
    saved = None if row_bytes is None or fraction is None else round(row_bytes * (1 - fraction))
    named = provenance(first.instruction)
    return Finding(
        code=code,
        severity=severity,
        title=title,
        instructions=instructions,
        places=len(sites),
        source=named.source,
        executions=total(runs for _, runs in _runs(analyses, sites)),
        bytes=row_bytes,
        saved_bytes=saved,
        saved_seconds=total(_saved_seconds(analyses, work, fraction) for _, work in sites),
        fix="safe",
        advice=advice,
        details=(
            f"streams all {buffer.rows:,} rows of a buffer of {kernel_names(buffer)}",
            _share(valid),
        ),
        facts={
            "rows": buffer.rows,
            "groups": buffer.groups,
            "valid_fraction": fraction,
            "valid_fraction_reason": valid.reason,
            "grouped_matmuls": sorted({g.instruction.name for g in buffer.matmuls}),
        },
    )


def _saved_seconds(analyses: Analyses, work: FullBufferWork, fraction: float | None) -> float | None:
    """The part of the time that goes into rows without tokens: as their share of the bytes."""
    cost = analyses.costs.of(work.instruction)
    if fraction is None or cost.seconds is None or not cost.hbm_bytes:
        return None
    runs = analyses.module.executions(work.instruction.computation)
    moving = cost.seconds - cost.latency_seconds
    return times(runs, moving * work.row_bytes / cost.hbm_bytes * (1 - fraction))


def _runs(analyses: Analyses, sites: list[_Site]) -> Iterator[tuple[FullBufferWork, int | None]]:
    for _, work in sites:
        yield work, analyses.module.executions(work.instruction.computation)


def _share(valid: ValidRows) -> str:
    if valid.fraction is None:
        return f"valid rows: unknown ({valid.reason})"
    return f"valid rows: {share(valid.fraction)} ({valid.reason})"
