"""Gathers into ragged buffers and scatters out of them: work that touches every row and mixes rows, so that it
stands at the border of what `rows` follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.rows import RaggedBuffer, is_wide_array
from hloscope.analysis.traffic import hbm_bytes
from hloscope.analysis.work import fusion_bodies
from hloscope.hlo import Instruction, is_async_part, is_async_start, start_of, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMove:
    """A gather that fills a ragged buffer, or a scatter that empties one, every row of it.

    `instruction` stands in the step (a start where it is asynchronous); `row_bytes` are the HBM bytes of one
    execution that shrink with the share of valid rows.
    """

    instruction: Instruction
    kind: str  # "gather" or "scatter"
    row_bytes: int | None


def row_moves(buffer: RaggedBuffer) -> tuple[RowMove, ...]:
    """The compiler's own gathers and scatters at the border of a buffer, in module order.

    Kernels are left out: they are told the number of valid rows and may skip the rest.
    """
    found = {m.instruction.id: m for v in buffer.values for m in (*_filled(v, buffer), *_emptied(v, buffer))}
    return tuple(sorted(found.values(), key=lambda m: m.instruction.id))


def _filled(value: Instruction, buffer: RaggedBuffer) -> Iterator[RowMove]:
    """The gather that makes a value of the buffer."""
    standing, work = _standing(value)
    if not any(is_wide_array(leaf, buffer.rows) for leaf in value.shape.parts):
        return
    if any(g.shape.dimensions[:1] == (buffer.rows,) for g in _within(work, "gather")):
        yield RowMove(instruction=standing, kind="gather", row_bytes=hbm_bytes(work))


def _emptied(value: Instruction, buffer: RaggedBuffer) -> Iterator[RowMove]:
    """The scatters that take a value of the buffer as their updates."""
    for user in value.users:
        standing, work = _standing(user)
        for scatter in _within(work, "scatter"):
            if any(is_wide_array(o.shape, buffer.rows) for o in scatter.operands[2:]):
                yield RowMove(instruction=standing, kind="scatter", row_bytes=hbm_bytes(work))


def _standing(value: Instruction) -> tuple[Instruction, Instruction]:
    """What stands in the step for a value, and the instruction that does its work."""
    if is_async_part(value.opcode) or is_async_start(value.opcode):
        start = start_of(value)
        return start, work_of(start)
    return value, value


def _within(work: Instruction, opcode: str) -> list[Instruction]:
    """The instructions of an opcode that a piece of work is or contains."""
    if work.opcode != "fusion":
        return [work] if work.opcode == opcode else []
    return [i for body in fusion_bodies(work) for i in body.instructions if i.opcode == opcode]
