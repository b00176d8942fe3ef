"""The module as a networkx graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from hloscope.hlo.module import Module


def module_graph(module: Module) -> nx.DiGraph[str]:
    """See `Module.graph`."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for instruction in module.instructions:
        graph.add_node(instruction.name, instruction=instruction)
    for instruction in module.instructions:
        by_id = instruction.computation.by_id
        for operand in instruction.operands:
            graph.add_edge(operand.name, instruction.name, kind="operand")
        for predecessor in instruction.proto.control_predecessor_ids:
            if predecessor in by_id:
                graph.add_edge(by_id[predecessor].name, instruction.name, kind="control")
        for callee in instruction.called_computations:
            graph.add_edge(instruction.name, callee.root.name, kind="calls")
    return graph
