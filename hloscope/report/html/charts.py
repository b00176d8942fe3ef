"""The charts of the HTML report, as plotly figures in JSON. Colours are Okabe and Ito's, told apart by everybody."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from hloscope.analysis.place import layer_of_name
from hloscope.report.budgets import MEMORY
from hloscope.report.terminal import cut
from hloscope.units import duration, plural, size, where

if TYPE_CHECKING:
    from hloscope.analysis.memory import Buffer, Memory
    from hloscope.analysis.step_time import StepTime
    from hloscope.report.diff import Diff

Figure = dict[str, Any]  # plotly's: `data` and `layout`

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
BLUE, ORANGE, GREEN, PINK, RED = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"
_PHASES = {
    "argument": BLUE,
    "forward": GREEN,
    "recompute": ORANGE,
    "backward": RED,
    "optimizer": PINK,
}
_OTHER, _MIXED = "#999999", "#dddddd"
# A family with more buffers than this shows the largest, and the others as one tile.
_TILES = 24
_LONGEST = 90
# Characters of a line of a tile's name, which may have several.
_LINE = 28


def memory_curve(memory: Memory) -> Figure | None:
    """Live HBM bytes over the schedule in steps, the peak and the device's limit marked; None if not known."""
    if not memory.live or memory.peak_bytes is None:
        return None
    unit, unit_name = _unit(memory.peak_bytes)
    alive = {
        "type": "scatter",
        "x": [p.position for p in memory.live],
        "y": [p.bytes / unit for p in memory.live],
        "mode": "lines",
        "fill": "tozeroy",
        "line": {"shape": "hv", "width": 1.5, "color": BLUE},
        "customdata": [[text(p.instruction), size(p.bytes)] for p in memory.live],
        "hovertemplate": "%{customdata[1]} alive<br>step %{x:,}: %{customdata[0]}<extra></extra>",
    }
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "position in the schedule"}},
        "yaxis": {"title": {"text": f"{unit_name} alive on a device"}, "rangemode": "tozero"},
        "showlegend": False,
        "hovermode": "x",
        "meta": {"note": _thinned(memory)},
        "shapes": [],
        "annotations": [],
    }
    for level, name, dash in _levels(memory, unit):
        layout["shapes"].append(_across({"type": "line", "y0": level, "y1": level, "line": dash}))
        layout["annotations"].append(
            {"xref": "paper", "x": 1, "y": level, "text": name, "showarrow": False, "yanchor": "bottom"}
        )
    if memory.peak_position is not None:
        top = memory.peak_bytes / unit
        peak = {"x": memory.peak_position, "y": top, "text": f"peak {size(memory.peak_bytes)}", "ay": -28}
        layout["annotations"].append(peak | {"arrowcolor": _OTHER})
    return checked([alive], layout)


def _thinned(memory: Memory) -> str:
    changes = 0 if memory.curve_positions is None else len(memory.curve_positions)
    if changes <= len(memory.live):
        return ""
    return (
        f"{len(memory.live):,} of {changes:,} changes are drawn, among them the peak and every top that "
        "reaches above its stretch of the schedule"
    )


def _unit(largest: int) -> tuple[int, str]:
    """What an axis up to so many bytes is told in."""
    return next(((bytes, name) for bytes, name in _UNITS if largest >= bytes), _UNITS[-1])


def _levels(memory: Memory, unit: int) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """What the curve is held against: the height in that unit, a name and a line."""
    if memory.argument_bytes is not None:
        yield memory.argument_bytes / unit, "arguments", {"dash": "dot", "width": 1, "color": _OTHER}
    limit = memory.hbm_limit_bytes
    # A limit far above would flatten the curve; the bar at the top of the page shows it then.
    if limit is not None and limit < 1.6 * (memory.peak_bytes or 0):
        yield limit / unit, "usable HBM", {"dash": "dash", "width": 2, "color": RED}


def _across(shape: dict[str, Any]) -> dict[str, Any]:
    return {**shape, "xref": "paper", "x0": 0, "x1": 1}


def peak_treemaps(memory: Memory) -> dict[str, Figure]:
    """The buffers alive at the peak as treemaps: by what they are, by source file; empty if not known."""
    if not memory.buffers_at_peak:
        return {}
    drawn = {
        "by phase and family": _treemap(_by_family(memory)),
        "by source file": _treemap(_by_source(memory.buffers_at_peak)),
    }
    # A program may number no layer: then one is a trip of a loop.
    if any(layer_of_name(b.op_name) for b in memory.buffers_at_peak):
        drawn["by layer"] = _treemap(_by_layer(memory.buffers_at_peak))
    return drawn


def roofline(time: StepTime) -> Figure | None:
    """Families by FLOP per HBM byte and by the share of the peak that they reach; None if no time is known."""
    points = [p for p in time.roofline if p.intensity]
    if not points:
        return None
    longest = max(p.seconds for p in points)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [p.intensity for p in points],
        "y": [max(p.compute_share, p.bandwidth_share) for p in points],
        "marker": {
            "size": [8 + 40 * (p.seconds / longest) ** 0.5 for p in points],
            "color": [RED if p.compute_share > p.bandwidth_share else BLUE for p in points],
            "symbol": ["diamond" if p.compute_share > p.bandwidth_share else "circle" for p in points],
            "opacity": 0.7,
        },
        "customdata": [
            [text(p.family), duration(p.seconds), p.compute_share, p.bandwidth_share] for p in points
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]} · %{x:,.1f} FLOP per byte<br>"
        "%{customdata[2]:.0%} of peak FLOP/s, %{customdata[3]:.0%} of peak HBM<extra></extra>",
    }
    others = len(time.roofline) - len(points)
    note = f"{plural(others, 'family')} without matrix operations or HBM bytes: no place on this axis"
    layout = {
        "meta": {"note": note if others else ""},
        "xaxis": {"type": "log", "dtick": 1, "title": {"text": "FLOP per HBM byte"}},
        "yaxis": {"title": {"text": "share of the nearer peak"}, "tickformat": ".0%", "rangemode": "tozero"},
        "showlegend": False,
    }
    return checked([trace], layout)


def before_and_after(diff: Diff) -> Figure | None:
    """The memory of both sides; None where none of it differs or is known."""
    shown = [
        (f.name, f.before, f.after)
        for f in diff.figures
        if f.name in MEMORY and f.before is not None and f.after is not None
    ]
    if not shown:
        return None
    names, before, after = zip(*shown, strict=True)
    unit, unit_name = _unit(int(max(*before, *after)))
    sides = (("before", BLUE, before), ("after", ORANGE, after))
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": list(names),
            "y": [value / unit for value in values],
            "marker": {"color": colour},
            "customdata": [size(int(value)) for value in values],
            "hovertemplate": "%{x} " + name + ": %{customdata}<extra></extra>",
        }
        for name, colour, values in sides
    ]
    return checked(traces, {"barmode": "group", "yaxis": {"title": {"text": f"{unit_name} on a device"}}})


# Path from the root, bytes, phase, number of the buffer or -1. What stands before a NUL keeps like names apart.
Tile = tuple[tuple[str, ...], int, str, int]


def _by_family(memory: Memory) -> Iterable[Tile]:
    number = {id(b): i for i, b in enumerate(memory.buffers_at_peak)}
    for index, family in enumerate(memory.families_at_peak):
        phase = family.phases[0] if len(family.phases) == 1 else "several phases"
        path = (phase, f"{index}\0{text(family.label)} {text(family.shape)}")
        for buffer in family.buffers[:_TILES]:
            yield (*path, _tile_name(buffer)), buffer.bytes, phase, number[id(buffer)]
        rest = family.buffers[_TILES:]
        if rest:
            yield (*path, f"{len(rest)} more"), sum(b.bytes for b in rest), phase, -1


Groups = dict[tuple[str, ...], list[tuple[int, "Buffer"]]]  # by path, with the numbers of the buffers


def _by_source(buffers: Sequence[Buffer]) -> Iterable[Tile]:
    groups: Groups = {}
    for number, buffer in enumerate(buffers):
        place = where(buffer.source)
        file, _, line = place.rpartition(":")
        path = (text(file or "source unknown"), f"line {line}" if line.isdigit() else line or buffer.kind)
        groups.setdefault(path, []).append((number, buffer))
    return _tiles(groups)


def _by_layer(buffers: Sequence[Buffer]) -> Iterable[Tile]:
    groups: Groups = {}
    for number, buffer in enumerate(buffers):
        path = (text(layer_of_name(buffer.op_name) or "outside of layers"), text(buffer.phase))
        groups.setdefault(path, []).append((number, buffer))
    return _tiles(groups)


def _tiles(groups: Groups) -> Iterable[Tile]:
    for path, members in groups.items():
        for number, buffer in members[:_TILES]:
            yield (*path, _tile_name(buffer)), buffer.bytes, buffer.phase, number
        rest = [b for _, b in members[_TILES:]]
        if rest:
            yield (*path, f"{len(rest)} more"), sum(b.bytes for b in rest), rest[0].phase, -1


def _tile_name(buffer: Buffer) -> str:
    shape = buffer.shape.short if buffer.shape is not None else ""
    return f"{text(buffer.label)} {text(shape)}"


def text(name: str) -> str:
    """A name as plotly shows it as it is: it would take tags for its own markup."""
    return escape(cut(name, _LONGEST), quote=False)


def _treemap(tiles: Iterable[Tile]) -> Figure:
    """Leaves and, above them, a box for every beginning of a path, with the sum of its leaves."""
    boxes: dict[tuple[str, ...], _Box] = {}
    for number, (path, weight, phase, buffer) in enumerate(tiles):
        for depth in range(len(path)):
            boxes.setdefault(path[:depth], _Box()).add(weight, phase)
        leaf = _Box(buffer=buffer)
        leaf.add(weight, phase)
        boxes[(*path[:-1], f"{number}\0{path[-1]}")] = leaf
    trace = {
        "type": "treemap",
        "ids": [_id(path) for path in boxes],
        "labels": [_label(path[-1]) if path else "alive at the peak" for path in boxes],
        "parents": [_id(path[:-1]) if path else "" for path in boxes],
        "values": [box.bytes for box in boxes.values()],
        "branchvalues": "total",
        "marker": {
            "colors": [box.colour for box in boxes.values()],
            "line": {"width": 1, "color": "#ffffff"},
        },
        "customdata": [[box.buffer, size(box.bytes)] for box in boxes.values()],
        "texttemplate": "%{label}<br>%{customdata[1]}",
        "hovertemplate": "%{label}<br>%{customdata[1]} · %{percentRoot:.1%} of the peak<extra></extra>",
        "maxdepth": 3,
        "tiling": {"pad": 1},
    }
    # A name that does not fit in a readable size is left to hovering.
    layout = {"margin": {"l": 0, "r": 0, "t": 24, "b": 8}, "uniformtext": {"minsize": 9, "mode": "hide"}}
    return checked([trace], layout)


@dataclass(slots=True)
class _Box:
    bytes: int = 0
    phases: set[str] = field(default_factory=set[str])
    buffer: int = -1

    def add(self, weight: int, phase: str) -> None:
        self.bytes += weight
        self.phases.add(phase)

    @property
    def colour(self) -> str:
        return _PHASES.get(next(iter(self.phases)), _OTHER) if len(self.phases) == 1 else _MIXED


def _id(path: tuple[str, ...]) -> str:
    return "\n".join(("all", *path))


def _label(name: str) -> str:
    return "<br>".join(wrap(name.rpartition("\0")[2], _LINE, break_long_words=False, break_on_hyphens=False))


def checked(traces: list[dict[str, Any]], layout: dict[str, Any]) -> Figure:
    """A figure as plotly's schema allows it. Raises ValueError for a property that plotly does not know."""
    graph_objects: Any = import_module("plotly.graph_objects")
    whole = {"margin": {"l": 60, "r": 16, "t": 24, "b": 48}, "template": "none", **layout}
    return json.loads(graph_objects.Figure(data=traces, layout=whole).to_json())
