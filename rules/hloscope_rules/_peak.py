"""What the rules on memory share: families of buffers at the peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Buffer
from hloscope.analysis.uses import taker, uses_of_part
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Fix, Severity
from hloscope.units import percent, size
from hloscope_rules._family import Site, fold

BufferKey = tuple[str, str, str]


def buffer_key(buffer: Buffer) -> BufferKey:
    """What buffers of one family have in common: label, shape and phase."""
    return buffer.label, buffer.shape.short if buffer.shape else "", buffer.phase


def buffer_finding(
    analyses: Analyses,
    code: str,
    severity: Severity,
    title: str,
    buffers: list[Buffer],
    *,
    held: int,
    advice: str,
    details: Iterable[str],
    facts: Mapping[str, Any] | None = None,
    fix: Fix = "none",
) -> Finding:
    """A finding on buffers of one family that are alive at the peak and hold `held` bytes there."""
    makers = [b.instruction for b in buffers if b.instruction is not None]
    return fold(
        analyses,
        code,
        severity,
        title,
        [Site(instruction=i, moved=None, saved=None) for i in makers],
        advice=advice,
        details=details,
        facts=facts,
        held=held,
        fix=fix,
    )


def of_peak(analyses: Analyses, bytes_: int) -> str:
    """A size beside its share of the peak: `1.2 GiB, 12 % of the peak`."""
    peak = analyses.memory.peak_bytes
    return f"{size(bytes_)}, {percent(bytes_, peak)} of the peak" if peak else size(bytes_)


def last_reader(buffer: Buffer) -> Instruction | None:
    """The last instruction, in the order of the module, that reads what a buffer holds."""
    if buffer.instruction is None:
        return None
    found = [taker(u.user) for u in uses_of_part(buffer.instruction, buffer.shape_index)]
    return max(found, key=lambda i: i.computation.instructions.index(i), default=None)
