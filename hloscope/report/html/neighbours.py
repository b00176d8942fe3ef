"""An instruction's neighbourhood as a chart: what it reads to its left, what reads it to its right."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import networkx as nx

from hloscope.hlo.neighbourhood import neighbourhood
from hloscope.report.html.charts import BLUE, RED, Figure, checked, text
from hloscope.units import where

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.hlo import Instruction
    from hloscope.hlo.neighbourhood import Neighbourhood

_HOPS = 2
# More names than this cannot be read; the nearest are shown.
_MOST = 24
# Names of more than these, one above the other, would touch.
_CROWD = 6
# A column of few is not drawn out over the whole height.
_FEWEST = 3


def neighbours(centre: Instruction) -> Figure:
    """What is two steps around an instruction, as a chart."""
    return drawn(neighbourhood(centre, _HOPS))


def drawn(around: Neighbourhood) -> Figure:
    """The nearest instructions of a neighbourhood, with the data that flows between them."""
    centre, total = around.centre, len(around.instructions)
    shown = {i.id: i for i in around.instructions[:_MOST]}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(shown)
    graph.add_edges_from(
        (e.source.id, e.target.id) for e in around.edges if e.source.id in shown and e.target.id in shown
    )
    column = _columns(graph)
    crowds = Counter(column.values())
    places = _places(column)
    ends = [(places[a], places[b]) for a, b in graph.edges]
    lines = {
        "type": "scatter",
        "mode": "lines",
        "x": list(chain.from_iterable((a[0], b[0], None) for a, b in ends)),
        "y": list(chain.from_iterable((a[1], b[1], None) for a, b in ends)),
        "line": {"color": "#999999", "width": 1},
        "hoverinfo": "skip",
    }
    nodes = {
        "type": "scatter",
        "mode": "markers+text",
        "cliponaxis": False,
        "x": [places[ident][0] for ident in shown],
        "y": [places[ident][1] for ident in shown],
        "text": [text(i.name) for i in shown.values()],
        "textposition": [_beside(column[ident], crowds[column[ident]]) for ident in shown],
        "marker": {
            "size": 12,
            "color": [RED if i is centre else BLUE for i in shown.values()],
            "symbol": ["diamond" if i is centre else "circle" for i in shown.values()],
        },
        "customdata": [
            [text(i.opcode), text(i.shape.short), text(where(i.source)), text(i.op_name)]
            for i in shown.values()
        ],
        "hovertemplate": "%{text}<br>%{customdata[0]} %{customdata[1]}<br>"
        "%{customdata[3]}<br>%{customdata[2]}<extra></extra>",
    }
    bare = {"visible": False, "range": [-1.4, 1.4]}  # names at the edges need room
    more = "more than " if around.is_cut else ""
    note = f"the nearest {len(shown)} of {more}{total:,} instructions" if total > len(shown) else ""
    layout = {
        "xaxis": bare,
        "yaxis": bare,
        "showlegend": False,
        "hovermode": "closest",
        "meta": {"note": note},
    }
    return checked([lines, nodes], layout)


def _columns(graph: nx.DiGraph[int]) -> dict[int, int]:
    """Columns in the order in which data flows; what waits for each other over a cycle stands in one column."""
    groups: Any = nx.condensation(graph)
    return {
        ident: number
        for number, together in enumerate(nx.topological_generations(groups))
        for component in together
        for ident in groups.nodes[component]["members"]
    }


def _places(column: Mapping[int, int]) -> dict[int, tuple[float, float]]:
    """Where each stands, from -1 to 1 both ways: columns over the whole width, the members of one over its height."""
    members: dict[int, list[int]] = {}
    for ident, number in column.items():
        members.setdefault(number, []).append(ident)
    last = max(members) or 1
    places: dict[int, tuple[float, float]] = {}
    for number, together in members.items():
        step = 2 / max(len(together) - 1, _FEWEST)
        for row, ident in enumerate(together):
            places[ident] = (2 * number / last - 1, step * ((len(together) - 1) / 2 - row))
    return places


def _beside(column: int, crowd: int) -> str:
    """Where a name stands. In a crowded column beside its mark, where the next has room too; else above and, in
    every second column, below, so that long names have room."""
    if crowd > _CROWD:
        return "middle left" if column == 0 else "middle right"
    return f"{'bottom' if column % 2 else 'top'} center"
