"""The collectives in the terminal report: kinds, and with everything asked for also sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from hloscope.analysis.collective_sizes import SizeClass, size_classes
from hloscope.analysis.collectives import Collective
from hloscope.analysis.step_time import GroupTime
from hloscope.report.model import Report
from hloscope.report.tables import Column, table
from hloscope.report.terminal import indented, words
from hloscope.units import UNKNOWN, count, duration, plural, size, where

_SHOWN = 8


def collectives(report: Report, width: int, everything: bool) -> Iterator[RenderableType]:
    """A line for each kind; times where any is known, else why none is."""
    found, times = report.collectives.collectives, report.time.collectives
    payload = "payload: the larger of operand and result, of all runs in one step on one device"
    yield words(("Collectives", "bold"), (f"  {payload}", "dim"))
    if not found:
        yield indented(words("none"))
        return
    shown = found if everything else found[:_SHOWN]
    columns = [
        Column(title="kind"),
        Column(title="phase", optional=1),
        Column(title="shape", shrinks=True),
        Column(title="dim", right=True, optional=2),
        Column(title="over", shrinks=True, most=30),
        Column(title="count", right=True, optional=3),
        Column(title="runs", right=True),
        Column(title="payload", right=True, style="bold"),
        Column(title="time", right=True),
        Column(title="exposed", right=True),
        Column(title="on", optional=4),
        Column(title="made by", shrinks=True, optional=5, cut_front=True, style="dim"),
    ]
    rows = [_row(c, t) for c, t in zip(shown, times, strict=False)]
    if all(t.seconds is None for t in times):
        del columns[8:10]
        rows = [row[:8] + row[10:] for row in rows]
        if reason := _untimed(report):
            yield indented(words((f"no times: {reason}", "dim")))
    yield table(columns, rows, width)
    rest = len(found) - len(shown)
    if rest:
        yield indented(words((f"{plural(rest, 'more kind')} with --all", "dim")))
    if everything:
        yield from _sizes(size_classes(found), width)


def _untimed(report: Report) -> str | None:
    """Why collectives have no time on the wire (`analysis/wire_place.py`); None off TPUs, which no model is of."""
    target = report.target
    if not target.may_be_for_tpus:
        return None
    if target.chip is None:
        return "the chip is unknown; --topology names it"
    if not report.module.proto.device_assignment.computation_devices:
        return "which device runs which part stands in the *.hlo.pb alone"
    return f"where the devices stand is unknown{'' if target.topology else '; --topology names it'}"


def _row(collective: Collective, time: GroupTime) -> list[str]:
    axes = collective.mesh_axes
    groups = UNKNOWN if collective.group_size is None else f"groups of {collective.group_size}"
    return [
        collective.opcode,
        collective.phase,
        collective.shape,
        "" if collective.dimension is None else str(collective.dimension),
        groups if axes is None else " × ".join(axes),
        count(collective.count),
        count(collective.executions),
        size(collective.bytes),
        duration(time.seconds),
        duration(time.step_seconds),
        {"sparsecore": "SparseCore"}.get(collective.offload or "", collective.offload or ""),
        where(collective.source),
    ]


def _sizes(classes: Sequence[SizeClass], width: int) -> Iterator[RenderableType]:
    yield words(("Collectives by size", "bold"), ("  payload of one run", "dim"))
    columns = (
        Column(title="kind"),
        Column(title="payload"),
        Column(title="count", right=True),
        Column(title="runs", right=True),
        Column(title="bytes", right=True),
        Column(title="time", right=True),
        Column(title="of it latency", right=True),
    )
    yield table(columns, [_size_row(c) for c in classes], width)


def _size_row(found: SizeClass) -> list[str]:
    upper = f"to {size(found.to_bytes)}" if found.to_bytes is not None else "and more"
    return [
        found.opcode,
        f"{size(found.from_bytes)} {upper}",
        count(found.count),
        count(found.executions),
        size(found.bytes),
        duration(found.seconds),
        duration(found.latency_seconds),
    ]
