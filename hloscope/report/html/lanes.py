"""The schedule as lanes: what cores, links, SparseCores and copy engines do at a time, and the waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from hloscope.analysis.costs import is_collective
from hloscope.report.escape import printable
from hloscope.report.html.charts import BLUE, GREEN, ORANGE, PINK, RED, Figure, checked, text
from hloscope.report.terminal import cut
from hloscope.units import duration

if TYPE_CHECKING:
    from hloscope.analysis.step_time import StepTime
    from hloscope.analysis.step_timeline import Line, Resource, Timeline
    from hloscope.hlo import Computation, Instruction

# Computations to choose from, and blocks in each: more is neither found nor seen.
_SHOWN, _BLOCKS = 6, 2500
_LEAST = 0.005  # of the step
_CORES, _LINKS = "cores", "links"
# Kinds of blocks by colour.
_COLOURS = {"work": BLUE, "loop": GREEN, "collective": PINK, "beside": ORANGE, "wait": RED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Something that takes time in a lane, in seconds from the begin of the run."""

    lane: str
    kind: str
    name: str
    begins: float
    seconds: float
    exposed: float | None = None


def lanes(time: StepTime) -> dict[str, Figure]:
    """A chart for each computation with a part of the step of its own, the largest first, by a title; empty if no
    time is known."""
    timeline = time.timeline
    if timeline is None or not timeline.seconds:
        return {}
    own = {
        c.id: timeline.runs.get(c.id, 0) * _own(timeline.lines[c.id])
        for c in timeline.module.control_computations
    }
    least = _LEAST * timeline.seconds
    chosen = nlargest(
        _SHOWN,
        (c for c in timeline.module.control_computations if own[c.id] > least),
        key=lambda c: own[c.id],
    )
    return {
        _title(timeline, c): _chart(list(_blocks(timeline, c)), timeline.lines[c.id].seconds) for c in chosen
    }


def _own(line: Line) -> float:
    """The seconds of one run without those of what it calls."""
    return line.seconds - sum(line.calls.values())


def _title(timeline: Timeline, computation: Computation) -> str:
    seconds = duration(timeline.lines[computation.id].seconds)
    if computation.id == timeline.module.entry.id:
        return f"the entry, {seconds}"
    # The name as a whole: clones, which are alike in all else, differ at its end.
    return f"{timeline.runs[computation.id]} × {seconds}, {cut(printable(computation.name), 200)}"


def _blocks(timeline: Timeline, computation: Computation) -> Iterator[Block]:
    line, by_id = timeline.lines[computation.id], computation.by_id
    for ident, begins in line.begins.items():
        work = by_id[ident]
        kind = "loop" if ident in line.calls else "collective" if is_collective(work) else "work"
        seconds = line.calls.get(ident) or line.own.get(ident, 0.0)
        yield Block(lane=_CORES, kind=kind, name=_name(work), begins=begins, seconds=seconds)
    for interval in line.intervals:
        if interval.duration is None:
            continue
        ends_at, exposed = interval.begins + interval.duration, interval.exposed or 0.0
        kind = "collective" if interval.resource[0] == _LINKS else "beside"
        yield Block(
            lane=_lane(interval.resource), kind=kind, name=_name(interval.start), begins=interval.begins,
            seconds=interval.duration, exposed=exposed,
        )  # fmt: skip
        if exposed:
            name = f"waits for {_name(interval.start)}"
            yield Block(lane=_CORES, kind="wait", name=name, begins=ends_at - exposed, seconds=exposed)


def _lane(resource: Resource) -> str:
    return " ".join(part for part in resource if part != "thread")


def _name(instruction: Instruction) -> str:
    return f"{instruction.opcode} {instruction.name}"


def _chart(blocks: list[Block], whole: float) -> Figure:
    shown = nlargest(_BLOCKS, (b for b in blocks if b.seconds > 0), key=lambda b: b.seconds)
    order = list(dict.fromkeys([_CORES, *sorted({b.lane for b in shown})]))
    traces = [_trace(kind, [b for b in shown if b.kind == kind]) for kind in _COLOURS]
    layout: dict[str, Any] = {
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"range": [0, whole], "tickformat": "~s", "ticksuffix": "s"},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": order[::-1],
            "automargin": True,
            "fixedrange": True,
        },
        "legend": {"orientation": "h", "y": 1.12},
        "hovermode": "closest",
    }
    return checked([t for t in traces if t["x"]], layout)


def _trace(kind: str, blocks: Iterable[Block]) -> dict[str, Any]:
    found = list(blocks)
    return {
        "type": "bar",
        "orientation": "h",
        "name": _NAMES[kind],
        "base": [b.begins for b in found],
        "x": [b.seconds for b in found],
        "y": [text(b.lane) for b in found],
        "marker": {"color": _COLOURS[kind], "line": {"width": 0.3, "color": "#ffffff"}},
        "customdata": [[text(b.name), duration(b.seconds), _exposed(b)] for b in found],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}%{customdata[2]}<extra></extra>",
    }


_NAMES = {
    "work": "runs on its own",
    "loop": "loop or call",
    "collective": "collective",
    "beside": "runs beside",
    "wait": "the step waits",
}


def _exposed(block: Block) -> str:
    return "" if block.exposed is None else f", {duration(block.exposed)} of it exposed"
