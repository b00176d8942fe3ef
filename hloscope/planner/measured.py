"""The figures of a compiled step that a change is judged by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.analysis.census import Family
from hloscope.analysis.sums import times, total
from hloscope.analysis.traffic import HBM, hbm_bytes
from hloscope.analysis.work import started_result
from hloscope.hlo import Instruction, Shape
from hloscope.report.model import Report

if TYPE_CHECKING:
    from hloscope.rule import Finding

# A row narrower than one vector register's lanes is a mask or an index, not data of a token.
_LANES = 128
# What moves a buffer without computing anything, as the compiler leaves it outside of fusions.
_COPIES = frozenset({"copy", "copy-start", "concatenate", "pad", "transpose", "slice", "select", "convert"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many instructions, or places of findings, and the HBM bytes that they move in a step; of findings that move
    nothing those that they hold at the peak. None is unknown."""

    count: int = 0
    bytes: int | None = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(count=self.count + other.count, bytes=total((self.bytes, other.bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One compile. Sizes are bytes of one device, `seconds` the estimated time of a step; None is unknown.

    HBM bytes are those of valid rows where their share is known. `fusions`, `copies` and `kernels` count what runs
    over whole ragged buffers: fusions, copies that the compiler put between them (from HBM to HBM: one to VMEM spares
    its reader as much), and custom calls that are no grouped matmuls. `collectives` are all collectives with their
    payload, `findings` the places and bytes (moved, or else held at the peak) of each rule's findings. `failed` is the
    compiler's line where the compile failed, and the figures are of what it left.
    """

    temp_bytes: int | None
    arena_bytes: int | None
    peak_bytes: int | None
    total_bytes: int | None
    seconds: float | None
    hbm_bytes: int | None
    fusions: Tally
    copies: Tally
    kernels: Tally
    collectives: Tally
    families: Mapping[str, Tally] = field(default_factory=dict[str, Tally])
    findings: Mapping[str, Tally] = field(default_factory=dict[str, Tally])
    compile_seconds: float | None = None
    failed: str | None = None


def measure(report: Report, rows: frozenset[int] | None = None) -> Measured:
    """The figures of a report. `rows` are the row counts of ragged buffers: the report's own if None.

    A rewritten step is measured with the original's, so that both count the same buffers.
    """
    rows = ragged_rows(report) if rows is None else rows
    matmuls = {g.instruction.id for r in report.ragged_buffers for g in r.buffer.matmuls}
    families = report.census.families
    full = [f for f in families if _streams_rows(f.instructions[0], rows)]
    kernels = [f for f in full if f.kind == "custom-call" and f.instructions[0].id not in matmuls]
    work = [f for f in full if f.kind != "custom-call"]
    memory = report.memory
    return Measured(
        temp_bytes=memory.temp_bytes,
        arena_bytes=memory.arena_bytes,
        peak_bytes=memory.peak_bytes,
        total_bytes=memory.total_bytes,
        # With work of unknown time the estimate is a lower bound, which cannot be compared.
        seconds=None if report.time.unknown else report.time.seconds,
        hbm_bytes=total(f.bytes for f in families),
        fusions=_tally(f for f in work if f.kind.startswith("fusion")),
        copies=_copies(f for f in work if f.kind in _COPIES),
        kernels=_tally(kernels),
        collectives=_payload(report),
        families=_by_name([*work, *kernels]),
        findings=by_code(report.findings),
        compile_seconds=report.target.compile_seconds,
        failed=report.target.error if report.target.status == "failed" else None,
    )


def ragged_rows(report: Report) -> frozenset[int]:
    """The row counts of a report's ragged buffers."""
    return frozenset(r.buffer.rows for r in report.ragged_buffers)


def _streams_rows(instruction: Instruction, rows: frozenset[int]) -> bool:
    """Whether it reads or writes a value of whole ragged rows."""
    shapes = [instruction.shape, *(operand.shape for operand in instruction.operands)]
    leaves = (leaf for shape in shapes for _, leaf in shape.leaves())
    return any(_holds_rows(leaf, rows) for leaf in leaves)


def _holds_rows(shape: Shape, rows: frozenset[int]) -> bool:
    sizes = shape.dimensions
    return len(sizes) >= 2 and sizes[0] in rows and shape.elements >= _LANES * sizes[0]


def _tally(families: Iterable[Family]) -> Tally:
    return sum((Tally(count=f.count, bytes=f.bytes) for f in families), Tally())


def _copies(families: Iterable[Family]) -> Tally:
    """Copies by themselves: one family holds those to HBM and those to VMEM."""
    found = [i for f in families for i in f.instructions if _stays_in_hbm(i)]
    return Tally(
        count=len(found),
        bytes=total(times(i.module.executions(i.computation), hbm_bytes(i)) for i in found),
    )


def _stays_in_hbm(copy: Instruction) -> bool:
    shapes = (started_result(copy), *(operand.shape for operand in copy.operands[:1]))
    return all(shape.memory_space == HBM for shape in shapes)


def _by_name(families: Iterable[Family]) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for f in families:
        name = f"{f.family} {f.phase} {f.shape}"
        found[name] = found.get(name, Tally()) + Tally(count=f.count, bytes=f.bytes)
    return found


def by_code(findings: Iterable[Finding]) -> dict[str, Tally]:
    """Places and bytes of each rule's findings: what they move in a step, else what they hold at the peak."""
    found: dict[str, Tally] = {}
    for f in findings:
        size = f.bytes if f.bytes is not None else f.held_bytes
        found[f.code] = found.get(f.code, Tally()) + Tally(count=f.places, bytes=size)
    return found


def _payload(report: Report) -> Tally:
    return sum((Tally(count=c.count, bytes=c.bytes) for c in report.collectives.collectives), Tally())
