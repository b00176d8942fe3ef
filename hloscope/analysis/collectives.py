"""The collectives of a step, by kind, shape and mesh axis, with their time on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hloscope.analysis.mesh_axes import MeshAxes, find_mesh, mesh_axes_of
from hloscope.analysis.place import phase_of_name, provenance
from hloscope.analysis.wire import WireCost, on_sparsecore, wire_cost
from hloscope.analysis.work import (
    body_opcodes,
    collective_opcode,
    fusion_bodies,
    has_collective,
    running,
    shape_text,
    started_result,
)

if TYPE_CHECKING:
    from hloscope.analysis.wire_place import Torus
    from hloscope.analysis.work import Running
    from hloscope.hlo import Instruction, Module, Shape, SourceFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Collectives that are alike. `bytes` are the payload of all executions: the larger of operand and
    result bytes on one device, without padding. `wire` is one execution of the slowest of them on the wire, and
    `seconds` the sum of all executions. None is unknown."""

    opcode: str  # "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute", ...
    form: str  # "opcode", or "fusion" for a reduce-scatter spelt as all-reduce and dynamic-slice
    shape: str  # result
    operand_shape: str
    dimension: int | None  # gathered or scattered dimension
    mesh_axes: tuple[str, ...] | None
    group_size: int | None
    count: int
    executions: int | None
    bytes: int | None
    payload: int  # of one execution, bytes
    wire: WireCost | None
    seconds: float | None
    offload: str | None  # "sparsecore" or None
    asynchronous: bool
    phase: str
    op_name: str
    source: SourceFrame | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """All collectives, most bytes first. `mesh` has the axes longer than one; None if it is unknown."""

    collectives: tuple[Collective, ...]
    mesh: dict[str, int] | None


def find_collectives(
    module: Module,
    *,
    mesh: Mapping[str, int] | None = None,
    mesh_device_ids: Sequence[int] | None = None,
    torus: Torus | None = None,
) -> Collectives:
    """Every collective of a module, each once however it is spelt, the like ones folded.

    `mesh` is the step's own (axis name to size, major axis first), for naming the axes of collectives whose
    groups name none; without it the mesh that the module names elsewhere is used. `mesh_device_ids` are the
    hardware ids of the mesh's devices in its order, where that is not the order of the device assignment.
    `torus` is where the devices stand; without it no time is known.
    """
    places = running(module)
    sites = [
        (site, place)
        for computation, place in places.items()
        for instruction in computation.instructions
        for site in _sites_of(instruction)
    ]
    axes = find_mesh(module, [site.collective for site, _ in sites], mesh, mesh_device_ids)
    groups: dict[_Key, list[tuple[_Site, Running]]] = {}
    for site, place in sites:
        groups.setdefault(_key(site, place, axes), []).append((site, place))
    found = [_fold(key, alike, torus) for key, alike in groups.items()]
    found.sort(key=lambda c: (-(c.bytes or 0), c.opcode, c.shape, c.phase))
    return Collectives(collectives=tuple(found), mesh=dict(axes.sizes) if axes else None)


def wire_costs(instruction: Instruction, torus: Torus | None) -> list[WireCost | None]:
    """One execution of each collective that an instruction is, or, as a fusion, holds; empty if there is none.

    None stands for one whose time is not known.
    """
    return [_wire(site, torus) for site in _sites_of(instruction)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """One collective: what runs (itself, or the fusion around it) and the collective proper."""

    instruction: Instruction
    collective: Instruction

    @property
    def opcode(self) -> str:
        """The collective that it really is."""
        own = self.collective.opcode
        return "reduce-scatter" if self.slices else collective_opcode(own) or own

    @property
    def payload(self) -> int:
        """The larger of operand and result, in bytes on one device."""
        operands = sum(o.shape.bytes for o in self.collective.operands)
        return max(operands, sum(s.bytes for s in self.results))

    @property
    def is_fused(self) -> bool:
        return self.instruction is not self.collective

    @property
    def slices(self) -> list[Instruction]:
        """What is kept of an all-reduce that is really a reduce-scatter: within its fusion only slices of its
        result are used. Empty of any other collective."""
        return (
            _only_slices(self.collective) if self.is_fused and self.collective.opcode == "all-reduce" else []
        )

    @property
    def results(self) -> list[Shape]:
        return [s.shape for s in self.slices] or [started_result(self.collective)]


class _Key(NamedTuple):
    """What collectives that are alike have in common."""

    opcode: str
    form: str
    shape: str
    operand_shape: str
    dimension: int | None
    mesh_axes: tuple[str, ...] | None
    group_size: int | None
    offload: str | None
    asynchronous: bool
    phase: str


def _sites_of(instruction: Instruction) -> Iterator[_Site]:
    if collective_opcode(instruction.opcode):
        yield _Site(instruction=instruction, collective=instruction)
    elif instruction.opcode == "fusion":
        for inner in _within(instruction):
            yield _Site(instruction=instruction, collective=inner)


def _within(fusion: Instruction) -> Iterator[Instruction]:
    """The collectives in a fusion's body, nested fusions included."""
    if not has_collective(body_opcodes(fusion)):
        return
    for body in fusion_bodies(fusion):
        yield from (i for i in body.instructions if collective_opcode(i.opcode))


def _only_slices(value: Instruction) -> list[Instruction]:
    """The dynamic-slices that alone use a value; empty where anything else uses it."""
    found: list[Instruction] = []
    for user in value.users:
        if user.opcode == "dynamic-slice":
            found.append(user)
            continue
        behind = _only_slices(user) if user.opcode in ("get-tuple-element", "bitcast") else []
        if not behind:
            return []
        found.extend(behind)
    return found


def _key(site: _Site, place: Running, mesh: MeshAxes | None) -> _Key:
    collective = site.collective
    groups = collective.replica_groups
    return _Key(
        site.opcode,
        "fusion" if site.is_fused else "opcode",
        shape_text(*site.results),
        shape_text(*(o.shape for o in collective.operands)),
        _dimension(site),
        mesh_axes_of(collective, mesh),
        groups.group_size if groups else None,
        _offload(collective),
        place.asynchronous or collective.opcode.endswith("-start"),
        phase_of_name(provenance(site.instruction).op_name).value,
    )


def _dimension(site: _Site) -> int | None:
    """The dimension that is gathered, scattered or split; None where there is none, or parts differ in it."""
    slices = site.slices
    if not slices:
        dimensions = site.collective.dimensions
        return dimensions[0] if dimensions else None
    found = {_changed(s.operands[0].shape.dimensions, s.shape.dimensions) for s in slices}
    return found.pop() if len(found) == 1 else None


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    if len(before) != len(after):
        return None
    different = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return different[0] if len(different) == 1 else None


def _offload(collective: Instruction) -> str | None:
    thread = collective.computation.execution_thread or collective.execution_thread
    return "sparsecore" if on_sparsecore(collective) else thread


def _wire(site: _Site, torus: Torus | None) -> WireCost | None:
    return None if torus is None else wire_cost(site.opcode, site.payload, site.collective, torus)


def _fold(key: _Key, sites: list[tuple[_Site, Running]], torus: Torus | None) -> Collective:
    instructions = tuple(site.instruction for site, _ in sites)
    runs = [place.executions for _, place in sites]
    known = [n for n in runs if n is not None]
    executions = sum(known) if len(known) == len(runs) else None
    # Alike in both shapes, so alike in payload.
    payload = sites[0][0].payload
    costs = [_wire(site, torus) for site, _ in sites]
    timed = [cost for cost in costs if cost is not None]
    seconds = [n * cost.seconds for n, cost in zip(runs, costs, strict=True) if n is not None and cost]
    named = provenance(instructions[0])
    return Collective(
        opcode=key.opcode,
        form=key.form,
        shape=key.shape,
        operand_shape=key.operand_shape,
        dimension=key.dimension,
        mesh_axes=key.mesh_axes,
        group_size=key.group_size,
        count=len(instructions),
        executions=executions,
        bytes=None if executions is None else executions * payload,
        payload=payload,
        wire=max(timed, key=lambda cost: cost.seconds) if len(timed) == len(sites) else None,
        seconds=sum(seconds) if len(seconds) == len(sites) else None,
        offload=key.offload,
        asynchronous=key.asynchronous,
        phase=key.phase,
        op_name=named.op_name,
        source=named.source,
        instructions=instructions,
    )
