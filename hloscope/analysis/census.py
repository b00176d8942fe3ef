"""The fusion census: families of fusions, custom calls and copies that do one work at one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hloscope.analysis.families import family_of
from hloscope.analysis.place import phase_of_name, provenance
from hloscope.analysis.sums import times, total
from hloscope.analysis.work import is_plumbing, running, shape_text, started_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.analysis.costs import Costs
    from hloscope.analysis.work import Running
    from hloscope.hlo import Computation, Instruction, Module, SourceFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A census line. Counts are of instructions, `executions` include loop trips; None is unknown."""

    family: str  # what a person would call it: "activation", "unsort", "matmul", "copy", a kernel's name, ...
    kind: str  # "fusion kLoop", "fusion kOutput", "custom-call", "copy", ...
    phase: str  # hloscope.analysis.place.Phase value
    loop: str | None  # trips of the loops around it, outermost first: `15 x 64`; None outside of loops
    shape: str  # result shape(s) without layout
    count: int
    executions: int | None
    bytes: int | None  # HBM bytes of all executions in a step; kernels at their valid rows, where known
    thread: str | None  # "sparsecore" or None
    op_name: str
    source: SourceFrame | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """All families, most HBM bytes first, and the counts behind them."""

    families: tuple[Family, ...]
    fusion_count: int  # every fusion instruction of the module, nested ones included
    top_level_fusion_count: int  # those that run on their own
    instruction_count: int


def take_census(module: Module, costs: Costs) -> Census:
    """Count the work of a module by family: what runs on its own, each piece once, nothing nested.

    HBM bytes are those that `costs` make a time of.
    """
    groups: dict[_Key, list[Instruction]] = {}
    places = running(module)
    for computation, place in places.items():
        for instruction in computation.instructions:
            if not is_plumbing(instruction):
                key = _key(instruction, place, provenance(instruction).op_name)
                groups.setdefault(key, []).append(instruction)
    families = [_family(key, instructions, places, costs) for key, instructions in groups.items()]
    families.sort(key=lambda f: (-(f.bytes or 0), f.family, f.phase, f.shape, f.kind))
    top_level = sum(f.count for f in families if f.kind.startswith("fusion"))
    return Census(
        families=tuple(families),
        fusion_count=module.opcode_counts.get("fusion", 0),
        top_level_fusion_count=top_level,
        instruction_count=module.instruction_count,
    )


class _Key(NamedTuple):
    """What instructions of one family have in common."""

    family: str
    kind: str
    phase: str
    loop: str | None
    shape: str
    thread: str | None


def _key(instruction: Instruction, place: Running, op_name: str) -> _Key:
    kind = instruction.opcode
    if instruction.fusion_kind:
        kind += f" {instruction.fusion_kind}"
    return _Key(
        family_of(instruction, op_name),
        kind,
        phase_of_name(op_name).value,
        place.loop,
        shape_text(started_result(instruction)),
        instruction.execution_thread or instruction.computation.execution_thread,
    )


def _family(
    key: _Key, instructions: list[Instruction], places: Mapping[Computation, Running], costs: Costs
) -> Family:
    runs = [places[i.computation].executions for i in instructions]
    moved = [times(costs.of(i).hbm_bytes, n) for i, n in zip(instructions, runs, strict=True)]
    named = provenance(instructions[0])
    return Family(
        family=key.family,
        kind=key.kind,
        phase=key.phase,
        loop=key.loop,
        shape=key.shape,
        count=len(instructions),
        executions=total(runs),
        bytes=total(moved),
        thread=key.thread,
        op_name=named.op_name,
        source=named.source,
        instructions=tuple(instructions),
    )
