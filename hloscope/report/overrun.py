"""Of a step that does not fit: how much is too much, and which findings are about what is alive at the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hloscope.analysis.memory import Memory
from hloscope.rule import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A finding and the bytes of the buffers alive at the peak that its instructions define."""

    finding: Finding
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """What a step needs above what a program may have, bytes of one device.

    `named` are the findings about buffers alive at the peak, most bytes first: where to begin. What a fix
    takes off the peak, only a compile of the changed step tells.
    """

    used_bytes: int
    limit_bytes: int
    named: tuple[Named, ...]

    @property
    def excess_bytes(self) -> int:
        """How much has to go."""
        return self.used_bytes - self.limit_bytes


def overrun(memory: Memory, findings: Sequence[Finding]) -> Overrun | None:
    """None where the step fits, or nobody knows."""
    used, limit = memory.total_bytes, memory.hbm_limit_bytes
    if used is None or limit is None or used <= limit:
        return None
    named = [Named(finding=f, peak_bytes=_alive(memory, f)) for f in findings if not _is_of_time_alone(f)]
    named = sorted((n for n in named if n.peak_bytes), key=lambda n: -n.peak_bytes)
    return Overrun(used_bytes=used, limit_bytes=limit, named=tuple(named))


def _is_of_time_alone(finding: Finding) -> bool:
    """Whether it costs time and no bytes, as a wait for a collective does: mending it frees nothing."""
    return finding.saved_seconds is not None and finding.saved_bytes is None and finding.held_bytes is None


def _alive(memory: Memory, finding: Finding) -> int:
    names = {i.name for i in finding.instructions}
    return sum(b.bytes for b in memory.buffers_at_peak if b.instruction and b.instruction.name in names)
