"""The tables of the HTML report: what stands in a cell, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hloscope.report.escape import printable
from hloscope.report.text_findings import waste
from hloscope.units import UNKNOWN, count, duration, percent, size, where

if TYPE_CHECKING:
    from hloscope.report.model import Report

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, and the number it is sorted by (None for text; -1 for an unknown figure)."""

    text: str
    order: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlTable:
    """A table that can be sorted and filtered. `ordered_by` is the column that it is sorted by at first, downwards
    (None: as the rows stand); `buffers` names the list that its rows show the lives of."""

    key: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    ordered_by: int | None = None
    buffers: str = field(default="")


def temporaries(report: Report) -> HtmlTable:
    """The buffers alive at the peak."""
    peak = report.memory.peak_bytes or 0
    return HtmlTable(
        key="buffers",
        title="Buffers alive at the peak",
        note="choose a row to see its life, its producer and its users",
        columns=("buffer", "shape", "bytes", "of the peak", "padding", "kind", "phase", "made by"),
        rows=[
            (
                text_cell(b.label),
                text_cell(b.shape.short if b.shape is not None else ""),
                _bytes(b.bytes),
                Cell(percent(b.bytes, peak), b.bytes),
                Cell(f"× {b.bytes / b.unpadded_bytes:.2f}", b.bytes / b.unpadded_bytes)
                if b.unpadded_bytes
                else Cell("", -1),
                text_cell(b.kind),
                text_cell(b.phase),
                text_cell(where(b.source)),
            )
            for b in report.memory.buffers_at_peak
        ],
        ordered_by=2,
        buffers="buffers",
    )


def census(report: Report) -> HtmlTable:
    """Families of fusions, kernels and copies."""
    families = report.census.families
    total = sum(f.bytes or 0 for f in families)
    return HtmlTable(
        key="census",
        title="Fusion census",
        note="runs in one step, loop trips included; HBM bytes of all runs, and their share of those that are known",
        columns=(
            "family",
            "phase",
            "shape",
            "count",
            "runs",
            "HBM bytes",
            "share",
            "time",
            "bound by",
            "kind",
            "made by",
        ),
        rows=[
            (
                text_cell(f.family),
                text_cell(f.phase),
                text_cell(f.shape),
                _number(f.count),
                _number(f.executions),
                _bytes(f.bytes),
                _share(f.bytes, total),
                _time(t.seconds),
                text_cell(t.bound_by or UNKNOWN),
                text_cell(f.kind),
                text_cell(where(f.source)),
            )
            for f, t in zip(families, report.time.families, strict=True)
        ],
        ordered_by=5,
    )


def collectives(report: Report) -> HtmlTable:
    """Collectives by kind, shape and mesh axis."""
    found = report.collectives.collectives
    total = sum(c.bytes or 0 for c in found)
    return HtmlTable(
        key="collectives",
        title="Collectives",
        note="payload: the larger of operand and result, of all runs in one step on one device",
        columns=(
            "kind",
            "phase",
            "shape",
            "dim",
            "over",
            "count",
            "runs",
            "payload",
            "share",
            "time",
            "exposed",
            "on",
            "made by",
        ),
        rows=[
            (
                text_cell(c.opcode),
                text_cell(c.phase),
                text_cell(c.shape),
                Cell("" if c.dimension is None else str(c.dimension), c.dimension),
                text_cell(_over(c.mesh_axes, c.group_size)),
                _number(c.count),
                _number(c.executions),
                _bytes(c.bytes),
                _share(c.bytes, total),
                _time(t.seconds),
                _time(t.step_seconds),
                text_cell(c.offload or ""),
                text_cell(where(c.source)),
            )
            for c, t in zip(found, report.time.collectives, strict=True)
        ],
        ordered_by=7,
    )


def findings(report: Report) -> list[dict[str, Any]]:
    """Findings with the docs of their rules, in the order of the report."""
    from hloscope.engine import load_rules

    rules = {r.code: r for r in load_rules()}
    return [{"finding": f, "waste": waste(f), "rule": rules.get(f.code)} for f in report.findings]


def _over(axes: Sequence[str] | None, group_size: int | None) -> str:
    if axes is not None:
        return " × ".join(axes)
    return UNKNOWN if group_size is None else f"groups of {group_size}"


def text_cell(text: str) -> Cell:
    """A cell of text, cut to what can be read."""
    shown = printable(text[: _LONGEST + 1])
    return Cell(shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "…")


def _number(value: int | None) -> Cell:
    return Cell(count(value), -1 if value is None else value)


def _bytes(value: int | None) -> Cell:
    return Cell(size(value), -1 if value is None else value)


def _time(value: float | None) -> Cell:
    return Cell(duration(value), -1 if value is None else value)


def _share(value: int | None, total: int) -> Cell:
    return Cell(UNKNOWN, -1) if value is None else Cell(percent(value, total), value)
