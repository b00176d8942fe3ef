"""Row-wise work: whether an operation keeps the rows of a buffer apart, so that a row it writes depends
on nothing but the same row of what it reads (or on nothing of the buffer at all)."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.hlo import Computation, Instruction, Shape, alike

# Operations that mix rows, or whose rows cannot be told from the shapes.
_MIXING = frozenset(
    {
        "gather", "scatter", "dot", "convolution", "ragged-dot", "sort", "custom-call", "reduce-window",
        "select-and-scatter", "fft", "triangular-solve", "cholesky", "while", "conditional", "call", "reverse",
        "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "rng-bit-generator",
        "map", "topk", "infeed", "outfeed", "send", "recv", "async-start", "parameter",
    }
)  # fmt: skip
_PASSING = frozenset({"copy-done", "get-tuple-element", "tuple", "optimization-barrier"})

# Which dimension holds the rows; None where a value has no rows.
_RowDimension = int | None


class MixesRows(Exception):  # noqa: N818 - a signal within this file, not an error
    """Raised while following rows through operations that mix them."""


def carries_rows(shape: Shape, rows: int) -> bool:
    """Whether any array in a shape has a dimension of `rows`."""
    return any(rows in leaf.dimensions for leaf in shape.parts)


def is_row_wise(instruction: Instruction, rows: int) -> bool:
    """Whether an instruction keeps the rows (a dimension of that size) of its operands apart."""
    if instruction.opcode in _PASSING or instruction.opcode == "copy-start":
        return True
    operands = [_dimension_of(o.shape, rows) for o in instruction.operands]
    try:
        _row_dimensions(instruction, operands, rows)
    except MixesRows:
        return False
    return True


def _dimension_of(shape: Shape, rows: int) -> _RowDimension:
    return shape.dimensions.index(rows) if rows in shape.dimensions else None


def _row_dimensions(
    instruction: Instruction, operands: Sequence[_RowDimension], rows: int
) -> tuple[_RowDimension, ...]:
    """The row dimension of each output. Raises MixesRows where rows do not stay apart."""
    opcode = instruction.opcode
    if opcode == "fusion":
        return _through_body(alike(instruction.called_computations[0]), tuple(operands), rows)
    if opcode == "tuple":
        return tuple(operands)
    known = {d for d in operands if d is not None}
    if not known:
        return (None,)
    if opcode in _MIXING:
        raise MixesRows
    if opcode == "broadcast":
        return (_entry(instruction.dimensions, known.pop()),)
    if opcode in ("bitcast", "reshape"):
        return (_still_there(instruction.shape, rows),)
    if opcode == "transpose":
        dimension = known.pop()
        if dimension not in instruction.dimensions:
            raise MixesRows
        return (instruction.dimensions.index(dimension),)
    if opcode == "reduce":
        return _through_reduce(instruction, known.pop())
    if opcode == "dynamic-update-slice":
        return (_through_update(instruction, operands, rows),)
    if len(known) > 1:
        raise MixesRows
    dimension = known.pop()
    if opcode == "concatenate" and dimension in instruction.dimensions:
        raise MixesRows
    if dimension >= len(instruction.shape.dimensions) or instruction.shape.dimensions[dimension] != rows:
        raise MixesRows  # sliced, padded or otherwise cut across rows
    return (dimension,)


def _through_body(
    body: Computation, operands: tuple[_RowDimension, ...], rows: int
) -> tuple[_RowDimension, ...]:
    """As `_through_fusion`, once for all fusions that do the same with the same."""
    known = body.module.facts[_through_body]
    key = (body, operands, rows)
    if key not in known:
        try:
            known[key] = _through_fusion(body, operands, rows)
        except MixesRows:
            known[key] = None
    found: tuple[_RowDimension, ...] | None = known[key]
    if found is None:
        raise MixesRows
    return found


def _through_fusion(
    body: Computation, operands: Sequence[_RowDimension], rows: int
) -> tuple[_RowDimension, ...]:
    found: dict[int, tuple[_RowDimension, ...]] = {}
    for inner in body.instructions:
        if inner.opcode == "parameter":
            found[inner.id] = (_entry(operands, inner.proto.parameter_number),)
            continue
        if inner.opcode == "get-tuple-element":
            found[inner.id] = (_entry(found[inner.operands[0].id], inner.proto.tuple_index),)
            continue
        inputs = [found[o.id][0] for o in inner.operands]
        found[inner.id] = _row_dimensions(inner, inputs, rows)
    return found[body.proto.root_id]


def _entry(entries: Sequence[_RowDimension], index: int) -> _RowDimension:
    """The entry, where a damaged module has it."""
    if not 0 <= index < len(entries):
        raise MixesRows
    return entries[index]


def _still_there(shape: Shape, rows: int) -> int:
    if rows not in shape.dimensions:
        raise MixesRows
    return shape.dimensions.index(rows)


def _through_reduce(reduce: Instruction, dimension: int) -> tuple[_RowDimension, ...]:
    """A sum over columns keeps rows; one over rows reads every row and has none left."""
    reduced = reduce.dimensions
    kept = None if dimension in reduced else dimension - sum(d < dimension for d in reduced)
    outputs = len(reduce.shape.tuple_shapes or (None,))
    return (kept,) * outputs


def _through_update(update: Instruction, operands: Sequence[_RowDimension], rows: int) -> _RowDimension:
    """Writing whole rows' worth into a larger buffer (a column range, a slot of a stack) keeps rows apart."""
    target, value = operands[0], operands[1]
    if value is None or update.operands[1].shape.dimensions[value] != rows:
        raise MixesRows
    if target is None:
        return _still_there(update.shape, rows)
    return target
