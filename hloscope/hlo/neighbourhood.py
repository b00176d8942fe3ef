"""The neighbourhood of an instruction: what it reads, what reads it, and what it calls, a few steps around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.hlo.shown import drawn

if TYPE_CHECKING:
    from hloscope.hlo import Computation, Instruction

# More than anyone looks at; a parameter of a large step has thousands of users.
MOST = 2000


_Successors = dict[int, dict[int, list["Instruction"]]]  # by computation, by predecessor


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Data (or order) that flows from one instruction to another. `kind` is "operand", "control" or "calls":
    from the root of a called computation to its caller."""

    source: Instruction
    target: Instruction
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Neighbourhood:
    """Instructions within some steps of `centre`, nearest first, with the edges among them.

    `distance` is the number of steps, by instruction id. `is_cut` says that there were more than `MOST`.
    """

    centre: Instruction
    instructions: tuple[Instruction, ...]
    edges: tuple[Edge, ...]
    distance: Mapping[int, int]
    is_cut: bool

    def __repr__(self) -> str:
        hops = max(self.distance.values())
        return (
            f"Neighbourhood(%{self.centre.name}, {len(self.instructions)} instructions within {hops} steps)"
        )

    def _repr_html_(self) -> str:
        return drawn(self, "neighbourhood_drawing")


def neighbourhood(centre: Instruction, hops: int) -> Neighbourhood:
    """Everything at most `hops` edges away from an instruction, in either direction."""
    found = {centre.id: centre}
    distance = {centre.id: 0}
    ring = [centre]
    successors: _Successors = {}
    for step in range(1, hops + 1):
        near: dict[int, Instruction] = {}
        for instruction in ring:
            near.update((o.id, o) for o in _around(instruction, successors) if o.id not in found)
        if not near:
            break
        ring = list(near.values())[: MOST - len(found)]
        found.update((i.id, i) for i in ring)
        distance.update((i.id, step) for i in ring)
        if len(ring) < len(near):
            return _made(centre, found, distance, is_cut=True)
    return _made(centre, found, distance, is_cut=False)


def sources(instruction: Instruction) -> Iterator[Edge]:
    """The edges that end at an instruction."""
    for operand in dict.fromkeys(instruction.operands):
        yield Edge(source=operand, target=instruction, kind="operand")
    by_id = instruction.computation.by_id
    for predecessor in instruction.proto.control_predecessor_ids:
        if predecessor in by_id:
            yield Edge(source=by_id[predecessor], target=instruction, kind="control")
    for callee in instruction.called_computations:
        yield Edge(source=callee.root, target=instruction, kind="calls")


def _around(instruction: Instruction, known: _Successors) -> Iterator[Instruction]:
    yield from (edge.source for edge in sources(instruction))
    yield from instruction.users
    computation = instruction.computation
    if computation.id not in known:
        known[computation.id] = _successors(computation)
    yield from known[computation.id].get(instruction.id, ())
    if instruction.is_root:
        yield from instruction.computation.callers


def _successors(computation: Computation) -> dict[int, list[Instruction]]:
    """What must wait for each instruction of a computation, without reading it."""
    found: dict[int, list[Instruction]] = {}
    for instruction in computation.instructions:
        for predecessor in instruction.proto.control_predecessor_ids:
            found.setdefault(predecessor, []).append(instruction)
    return found


def _made(
    centre: Instruction, found: Mapping[int, Instruction], distance: Mapping[int, int], *, is_cut: bool
) -> Neighbourhood:
    edges = (edge for i in found.values() for edge in sources(i) if edge.source.id in found)
    return Neighbourhood(
        centre=centre,
        instructions=tuple(found.values()),
        edges=tuple(edges),
        distance=distance,
        is_cut=is_cut,
    )
