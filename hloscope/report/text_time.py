"""The estimated time of a step in the terminal report, and what the estimate is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType

from hloscope.analysis.step_time import LoopTime, RooflinePoint, StepTime
from hloscope.hlo.compiler_schedule import CompilerSchedule
from hloscope.report.tables import Column, table
from hloscope.report.terminal import cut, indented, joined, words
from hloscope.units import UNKNOWN, count, duration, plural

_SHOWN_KINDS = 3
_SMALL = 0.005  # of the step: not worth a word


def step_time(time: StepTime, width: int, everything: bool) -> Iterator[RenderableType]:
    """The whole block; nothing where no time is known."""
    if time.seconds is None:
        return
    least = "at least " if time.unknown else ""
    yield words(("Step time", "bold"), ("  estimated along the schedule, one device", "dim"))
    yield indented(
        words((f"{least}{duration(time.seconds)}", "bold"), f"  {_phases(time.by_phase, time.seconds)}")
    )
    yield indented(words(_bounds(time)))
    yield indented(words((_worth(time), "dim")))
    if everything:
        yield from _scheduler(time.scheduler)
        yield from _loops(time.loops, width)
        yield from _layers(time.by_layer, width)
        yield from _roofline(time.roofline, width)


def _phases(by_phase: Mapping[str, float], whole: float) -> str:
    return joined(
        f"{phase} {duration(seconds)}" for phase, seconds in by_phase.items() if seconds >= _SMALL * whole
    )


def _bounds(time: StepTime) -> str:
    whole = time.seconds or 1.0
    parts = (
        f"{_BOUNDS.get(name, name)} {_percent(seconds / whole)}"
        for name, seconds in time.by_bound.items()
        if seconds >= _SMALL * whole
    )
    hidden = f"{duration(time.hidden_seconds)} of asynchronous work hidden" if time.hidden_seconds else None
    return joined((*parts, hidden))


_BOUNDS = {
    "bandwidth": "bound by HBM",
    "compute": "by matrix units",
    "issue": "by vector units",
    "latency": "by latency",
    "exposed": "waiting",
    UNKNOWN: "by the unknown",
}


def _worth(time: StepTime) -> str:
    """One line: by which figures, and how much of it is a limit or missing."""
    whole = time.seconds or 1.0
    lower, upper = (time.lower_seconds or 0.0) / whole, (time.upper_seconds or 0.0) / whole
    return joined(
        (
            time.model,
            f"{_percent(lower)} of it may take longer" if lower >= _SMALL else None,
            f"{_percent(upper)} may take less" if upper >= _SMALL else None,
            _missing(time),
        ),
        "; ",
    )


def _scheduler(scheduler: CompilerSchedule | None) -> Iterator[RenderableType]:
    """What the compiler expects, for comparison."""
    if scheduler is None:
        return
    waits = joined(
        f"{duration(seconds)} for {name}" for name, seconds in scheduler.waits.items() if seconds > 0
    )
    length = f"{duration(scheduler.seconds)} for the entry, loops once"
    text = f"the compiler's scheduler, at {scheduler.clock_hz / 1e6:,.0f} MHz, counts {length}"
    yield indented(words((text + (f"; it waits {waits}" if waits else ""), "dim")))


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _missing(time: StepTime) -> str | None:
    if not time.unknown:
        return None
    kinds = Counter(i.opcode.removesuffix("-start") for i in time.unknown)
    named = ", ".join(f"{n} × {cut(opcode, 30)}" for opcode, n in kinds.most_common(_SHOWN_KINDS))
    more = "" if len(kinds) <= _SHOWN_KINDS else f" and {plural(len(kinds) - _SHOWN_KINDS, 'more kind')}"
    return f"without a time: {named}{more}"


def _loops(loops: Sequence[LoopTime], width: int) -> Iterator[RenderableType]:
    if not loops:
        return
    columns = (
        Column(title="Loops", shrinks=True, most=44),
        Column(title="trips", right=True),
        Column(title="one trip", right=True),
        Column(title="in the step", right=True, style="bold"),
    )
    rows = [
        [loop.loop.name, count(loop.trips), duration(loop.trip_seconds), duration(loop.step_seconds)]
        for loop in loops
    ]
    yield words()
    yield table(columns, rows, width)


def _layers(by_layer: Mapping[str | None, float], width: int) -> Iterator[RenderableType]:
    if not by_layer:
        return
    columns = (
        Column(title="Layers", shrinks=True, most=44),
        Column(title="in the step", right=True, style="bold"),
    )
    yield words()
    yield table(columns, [[name or "outside", duration(s)] for name, s in by_layer.items()], width)


def _roofline(points: Sequence[RooflinePoint], width: int) -> Iterator[RenderableType]:
    if not points:
        return
    columns = (
        Column(title="Roofline", shrinks=True, most=44),
        Column(title="time", right=True, style="bold"),
        Column(title="FLOP per byte", right=True),
        Column(title="of peak FLOP/s", right=True),
        Column(title="of peak HBM", right=True),
    )
    rows = [
        [
            point.family,
            duration(point.seconds),
            "no HBM" if point.intensity is None else f"{point.intensity:,.1f}",
            _percent(point.compute_share),
            _percent(point.bandwidth_share),
        ]
        for point in points
    ]
    yield words()
    yield table(columns, rows, width)
