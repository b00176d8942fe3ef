"""Where in the step an instruction belongs: forward, recomputation, backward, or outside of the gradient."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from hloscope.hlo import (
    Instruction,
    async_operation,
    is_async_part,
    is_async_start,
    once_for_each,
    start_of,
    work_of,
)

# jax names the transposed program `transpose(jvp(...))`, what checkpoint recomputes in it
# `rematted_computation`, and the differentiated forward program `jvp(...)`.
_RECOMPUTE = "rematted_computation"
_BACKWARD = "transpose("
_FORWARD = re.compile(r"\bjvp\(")

# A name that the compiler made up where the program has none, e.g. `convert.340` or `ragged-dot-none`.
_INVENTED = re.compile(r"[a-z][a-z_-]*(\.\d+)+|[a-z]+(-[a-z]+)+")

# A layer that stands in the program by itself: `layers_3`, `layers/3`, `TransformerBlock_3`, `h_3`. A layer that is
# a trip of a loop has no number.
_LAYER = re.compile(r"(?:^|[/(])((?:\w*(?:layer|block)s?|h)[_/.]?\d+)(?=[/)])", re.IGNORECASE)

# A module has far fewer op names than instructions, and each is asked about several times.
_NAMES = 2**16

# How far to look among operands and users for a name that the compiler left out.
_REACH = 8


class Phase(Enum):
    """The part of a training step."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OTHER = "other"
    UNKNOWN = "unknown"


@lru_cache(maxsize=_NAMES)
def phase_of_name(op_name: str) -> Phase:
    """The phase that an op name tells; UNKNOWN for none of the program's, OTHER outside of a gradient."""
    if not is_program_name(op_name):
        return Phase.UNKNOWN
    if _RECOMPUTE in op_name:
        return Phase.RECOMPUTE
    if _BACKWARD in op_name:
        return Phase.BACKWARD
    return Phase.FORWARD if _FORWARD.search(op_name) else Phase.OTHER


@lru_cache(maxsize=_NAMES)
def is_program_name(op_name: str) -> bool:
    """Whether an op name is the program's: a path in it or an argument, not what the compiler made up."""
    return "/" in op_name or (bool(op_name) and not _INVENTED.fullmatch(op_name))


@lru_cache(maxsize=_NAMES)
def layer_of_name(op_name: str) -> str | None:
    """The outermost layer that an op name stands in, as the program calls it; None outside of numbered layers."""
    found = _LAYER.search(op_name)
    return found[1] if found else None


def layer_of(instruction: Instruction) -> str | None:
    """The layer of an instruction, from its provenance (see `provenance`)."""
    return layer_of_name(provenance(instruction).op_name)


def phase_of(instruction: Instruction) -> Phase:
    """The phase of an instruction, from its provenance (see `provenance`)."""
    return phase_of_name(provenance(instruction).op_name)


@once_for_each
def provenance(instruction: Instruction) -> Instruction:
    """The instruction that names the user's operation behind this one: itself where it has an op name,
    else the work it wraps, what its body ends in, its producer, its user or the call around it.

    SparseCore collectives, copies and data-format calls often carry no name of their own.
    """
    current = instruction
    for _ in range(_REACH):
        found = _named(current)
        if found is not None:
            return found
        callers = [c for c in current.computation.callers if not is_async_part(c.opcode)]
        if current.computation.is_fusion or len(callers) != 1 or callers[0].opcode == "while":
            break
        current = callers[0]
    return instruction


def _named(instruction: Instruction) -> Instruction | None:
    if _has_name(instruction):
        return instruction
    inner = work_of(start_of(instruction))
    if _has_name(inner):
        return inner
    if inner.opcode == "fusion" and inner.called_computations:
        body = reversed(inner.called_computations[0].instructions)
        named = next((i for i in body if _has_name(i)), None)
        if named is not None:
            return named
    return _neighbour(instruction, forwards=False) or _neighbour(instruction, forwards=True)


def _has_name(instruction: Instruction) -> bool:
    return is_program_name(instruction.op_name)


def _neighbour(instruction: Instruction, *, forwards: bool) -> Instruction | None:
    """The nearest named producer (or user), first operand (or user) first."""
    current = instruction
    for _ in range(_REACH):
        near = _near(current, forwards=forwards)
        if not near:
            return None
        current = near[0]
        if _has_name(current):
            return current
        work = work_of(start_of(current)) if is_async_part(current.opcode) else current
        if _has_name(work):
            return work
    return None


def _near(instruction: Instruction, *, forwards: bool) -> tuple[Instruction, ...]:
    """Users or operands; of an asynchronous operation as one, as operands may be bound only at its update."""
    if not is_async_start(instruction.opcode) and not is_async_part(instruction.opcode):
        return instruction.users if forwards else instruction.operands
    start = start_of(instruction)
    if not forwards and start.opcode != "async-start":
        return start.operands
    operation = async_operation(start)
    if forwards:
        return operation.done.users if operation.done else ()
    return operation.operands
