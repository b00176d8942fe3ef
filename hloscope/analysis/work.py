"""What counts as work in a module, where it runs, and how its shapes are written for a person."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.hlo import Shape, is_async_part, once_per_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hloscope.hlo import Computation, Instruction, Module

# Instructions that move nothing themselves: they name, group or order values, or run other computations
# whose instructions are counted where they stand.
PLUMBING = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency",
    "opt-barrier", "optimization-barrier", "partition-id", "replica-id", "domain",
    "while", "call", "conditional", "async-start", "get-dimension-size",
})  # fmt: skip

COLLECTIVES = frozenset({
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
})  # fmt: skip

# Custom calls of the compiler that only reserve or rename memory.
_FREE_TARGETS = frozenset({"AllocateBuffer", "ConcatBitcast", "X64Combine", "X64SplitLow", "X64SplitHigh"})


def is_plumbing(instruction: Instruction) -> bool:
    """Whether an instruction does no work of its own, so that no census counts it."""
    opcode = instruction.opcode
    if opcode in PLUMBING or is_async_part(opcode):
        return True
    return opcode == "custom-call" and instruction.custom_call_target in _FREE_TARGETS


@lru_cache(maxsize=1024)
def collective_opcode(opcode: str) -> str | None:
    """The collective that an opcode stands for, its asynchronous start included; None for anything else."""
    name = opcode.removesuffix("-start")
    return name if name in COLLECTIVES else None


@lru_cache(maxsize=4096)
def has_collective(opcodes: frozenset[str]) -> bool:
    """Whether a collective, or its asynchronous start, is among opcodes."""
    return any(collective_opcode(opcode) for opcode in opcodes)


def started_result(start: Instruction) -> Shape:
    """What `copy-start`, `all-gather-start` and the like will have produced, out of their tuple of buffers;
    the shape itself of anything else."""
    parts = start.shape.tuple_shapes
    if parts is None or not start.opcode.endswith("-start") or start.opcode == "all-reduce-start":
        return start.shape
    # copy-start lists its destination first, the collectives their operands.
    return parts[0] if start.opcode == "copy-start" else parts[min(1, len(parts) - 1)]


def fusion_bodies(fusion: Instruction) -> Iterator[Computation]:
    """A fusion's body and those of the fusions nested in it, each once."""
    nested = fusion.module.nested_fusions
    waiting = list(fusion.called_computations)
    seen: set[int] = set()
    while waiting:
        body = waiting.pop()
        if body.id in seen:
            continue
        seen.add(body.id)
        yield body
        waiting.extend(nested(body.id))


def body_opcodes(fusion: Instruction) -> frozenset[str]:
    """The opcodes within a fusion, nested fusions included."""
    callees = fusion.called_computations
    return fusion.module.opcodes_in(callees[0].id) if callees else frozenset()


def shape_text(*shapes: Shape) -> str:
    """Shapes without layout, largest first, equal ones folded: `2 x bf16[163840,1024], f32[163840]`."""
    if len(shapes) == 1:
        return shapes[0].folded
    return Shape("tuple", tuple_shapes=shapes).folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How a control computation runs."""

    executions: int | None  # in a step, loop trips included; None is unknown
    loop: str | None  # trips of the loops around it, outermost first: `15 x 64`; None outside of loops
    asynchronous: bool  # beside the main program, between a start and its done


@once_per_module
def running(module: Module) -> Mapping[Computation, Running]:
    """How each control computation of a module runs, callees before callers as in the module.

    A loop is told by its trips, so that copies of one loop, one for each layer, are one.
    """
    found: dict[Computation, Running] = {}
    for computation in reversed(module.control_computations):
        callers = (c for c in computation.callers if not is_async_part(c.opcode))
        caller = next((c for c in callers if c.computation in found), None)
        around = found[caller.computation] if caller else None
        loop = around.loop if around else None
        if caller and caller.opcode == "while":
            trips = module.trip_counts[caller.id]
            loop = f"{loop} x {_trips(trips)}" if loop else _trips(trips)
        started = caller is not None and caller.opcode == "async-start"
        found[computation] = Running(
            executions=module.executions(computation),
            loop=loop,
            asynchronous=started or (around is not None and around.asynchronous),
        )
    return {c: found[c] for c in module.control_computations}


def _trips(count: int | None) -> str:
    return "?" if count is None else str(count)
