"""What a kernel stores and in which order: pieces of the outputs, those of one width side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import cast

from hloscope_kernels.valid_rows.program import Constant, Operation, Program
from hloscope_kernels.valid_rows.roles import Role

_RENAMES = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of columns of one output, computed as one value.

    Attributes:
      output: position of the output.
      value: the value to compute; for a sum, what is summed.
      width: columns of the value.
      offset: where they begin in the output.
      is_sum: the output is, per row, the sum of the value's columns.
    """

    output: int
    value: int
    width: int
    offset: int
    is_sum: bool = False


def is_vector(shape: tuple[int, ...]) -> bool:
    """One number per row."""
    return len(shape) == 1 or shape[1] == 1


def lockstep(program: Program, roles: dict[int, Role]) -> list[list[Piece]]:
    """The pieces of all outputs, in groups of equal width.

    The pieces of a group are stored chunk by chunk together: what they share, as the two halves of a
    gradient do, is then computed once and needs no memory. Other numbers per row are not here: they
    are one piece of 128 lanes each, stored as such.
    """
    makers = {result: operation for operation in program.operations for result in operation.results}
    pieces: list[Piece] = []
    for output, value in enumerate(program.outputs):
        if isinstance(value, Constant):
            continue
        if not is_vector(program.types[value].shape):
            pieces += _split(
                program, makers, Piece(output=output, value=value, width=_width(program, value), offset=0)
            )
        elif (summed := _summed(program, makers, value)) is not None:
            pieces.append(
                Piece(output=output, value=summed, width=_width(program, summed), offset=0, is_sum=True)
            )
    pieces.sort(key=lambda piece: piece.width)
    return [list(group) for _, group in groupby(pieces, key=lambda piece: piece.width)]


def summed_outputs(groups: list[list[Piece]]) -> set[int]:
    """Positions of the outputs that are sums over columns."""
    return {piece.output for group in groups for piece in group if piece.is_sum}


def _width(program: Program, value: int) -> int:
    return program.types[value].shape[-1]


def _split(program: Program, makers: dict[int, Operation], piece: Piece) -> list[Piece]:
    """A concatenation is stored part by part."""
    operation = makers.get(piece.value)
    if operation is None or operation.name != "concatenate":
        return [piece]
    pieces: list[Piece] = []
    offset = piece.offset
    for part in operation.operands:
        value = cast("int", part)  # Only scalars stand as constants.
        width = _width(program, value)
        pieces += _split(program, makers, Piece(output=piece.output, value=value, width=width, offset=offset))
        offset += width
    return pieces


def _summed(program: Program, makers: dict[int, Operation], value: int) -> int | None:
    """What an output sums over columns, where nothing else in the program reads the sum."""
    uses: dict[int, int] = {}
    for operation in program.operations:
        for operand in operation.operands:
            if not isinstance(operand, Constant):
                uses[operand] = uses.get(operand, 0) + 1
    if uses.get(value, 0) or program.outputs.count(value) > 1:
        return None
    operation = makers.get(value)
    while operation is not None and operation.name in _RENAMES:
        inner = operation.operands[0]
        if isinstance(inner, Constant) or uses[inner] > 1 or inner in program.outputs:
            return None
        operation = makers.get(inner)
    if operation is None or operation.name != "reduce_sum" or isinstance(operation.operands[0], Constant):
        return None
    return operation.operands[0]
