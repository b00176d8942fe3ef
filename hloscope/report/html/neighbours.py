"""An instruction's neighbourhood as a chart: what it reads to its left, what reads it to its right."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import networkx as nx

from hloscope.hlo.neighbourhood import neighbourhood
from hloscope.report.html.charts import BLUE, RED, Figure, checked, text
from hloscope.units import where

if TYPE_CHECKING:
    from hloscope.hlo import Instruction
    from hloscope.hlo.neighbourhood import Neighbourhood

_HOPS = 2
# More names than this cannot be read; the nearest are shown.
_MOST = 24


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
    places = _places(graph)
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
        "x": [places[ident][0] for ident in shown],
        "y": [places[ident][1] for ident in shown],
        "text": [text(i.name) for i in shown.values()],
        # Those of one column above their marks, those of the next below: long names then have room.
        "textposition": [
            f"{'bottom' if graph.nodes[ident]['column'] % 2 else 'top'} center" for ident in shown
        ],
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
    bare = {"visible": False, "range": [-1.35, 1.35]}  # names at the edges need room
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


def _places(graph: nx.DiGraph[int]) -> dict[int, tuple[float, float]]:
    """Columns in the order in which data flows; what waits for each other over a cycle stands in one column."""
    columns: Any = nx.condensation(graph)
    for column, together in enumerate(nx.topological_generations(columns)):
        for component in together:
            for ident in columns.nodes[component]["members"]:
                graph.nodes[ident]["column"] = column
    found = nx.multipartite_layout(graph, subset_key="column")
    return {ident: (float(x), float(y)) for ident, (x, y) in found.items()}
