"""Glue around grouped matmuls: the index work that sorts tokens by expert and tells kernels where groups begin."""

from __future__ import annotations

from hloscope.analysis.rows import RaggedBuffer
from hloscope.analysis.work import COLLECTIVES, is_plumbing
from hloscope.hlo import Instruction, Shape, async_operation, is_async_part, is_async_start, start_of, work_of

_NUMBERS = ("s", "u", "pred")
_STOPS = COLLECTIVES | {"parameter", "constant", "dot", "convolution", "custom-call", "ragged-dot"}


def glue_of(buffer: RaggedBuffer) -> tuple[Instruction, ...]:
    """The work that only makes integers for a ragged buffer: group sizes, sort orders, row numbers, masks.

    Followed back from the integer operands of the grouped matmuls and of the gathers and scatters beside them, as
    long as results are integers, through loops (of which all instructions count) and asynchronous operations; it ends
    at matmuls, kernels and collectives.
    """
    seeds = [g.instruction for g in buffer.matmuls]
    for value in buffer.values:
        seeds.append(value)
        seeds += value.users
    waiting = [o for seed in seeds for o in _operands(seed) if _is_numbers(o)]
    found: dict[int, Instruction] = {}
    while waiting:
        value = waiting.pop()
        if value.id in found:
            continue
        found[value.id] = value
        if work_of(_start(value)).opcode not in _STOPS:
            waiting += [o for o in _operands(value) if _is_numbers(o)]
    inner = [i for v in found.values() if v.opcode == "while" for i in _of_loop(v)]
    work = {i.id: i for i in (*found.values(), *inner) if not is_plumbing(i) and i.opcode not in _STOPS}
    return tuple(sorted(work.values(), key=lambda i: i.id))


def _operands(value: Instruction) -> tuple[Instruction, ...]:
    start = _start(value)
    return async_operation(start).operands if is_async_start(start.opcode) else start.operands


def _start(value: Instruction) -> Instruction:
    return start_of(value) if is_async_part(value.opcode) else value


def _is_numbers(value: Instruction) -> bool:
    """Whether any part of a value is integers or masks, and none is rows of data; looked at once for each shape."""
    known, shape = value.module.facts[_is_numbers], value.shape
    if id(shape) not in known:
        known[id(shape)] = _has_numbers(shape)
    return known[id(shape)]


def _has_numbers(shape: Shape) -> bool:
    leaves = [leaf for leaf in shape.parts if leaf.is_array]
    kinds = [leaf.element_type.startswith(_NUMBERS) for leaf in leaves]
    return any(kinds) and all(k or len(leaf.dimensions) < 2 for k, leaf in zip(kinds, leaves, strict=True))


def _of_loop(loop: Instruction) -> list[Instruction]:
    return [i for c in loop.called_computations for i in c.instructions]
