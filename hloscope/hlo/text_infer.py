"""Shapes that HLO text leaves out: text written by hand may, where the operands tell the result's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hloscope.hlo import protos

_TOKEN, _PRED, _U32, _TUPLE = 17, 1, 8, 13
_PARTS = {15: 11, 18: 12}  # c64 is made of f32, c128 of f64
# Of a call or a conditional, `operands` are the results of what it calls.
_SAME = frozenset({
    "abs", "acos", "acosh", "add", "add-dependency", "and", "asin", "asinh", "atan", "atan2", "atanh", "call",
    "cbrt", "ceil", "conditional", "copy", "cosh", "cosine", "count-leading-zeros", "divide", "erf", "exponential",
    "exponential-minus-one", "floor", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply",
    "negate", "not", "optimization-barrier", "or", "popcnt", "power", "remainder", "reverse",
    "round-nearest-afz", "round-nearest-even", "rsqrt", "shift-left", "shift-right-arithmetic",
    "shift-right-logical", "sign", "sine", "sinh", "sqrt", "subtract", "tan", "tanh", "while", "xor",
})  # fmt: skip
_SECOND = frozenset({"clamp", "select"})
_COMPARISONS = frozenset({"compare", "is-finite"})


def inferred_shape(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> protos.Shape | None:
    """The shape of an instruction's result from its operands'; None where they alone do not tell it."""
    opcode = proto.opcode
    if opcode == "tuple":
        return protos.Shape(element_type=_TUPLE, tuple_shapes=operands)
    if opcode in ("after-all", "partition-id", "replica-id"):
        return protos.Shape(element_type=_TOKEN if opcode == "after-all" else _U32)
    place = 1 if opcode in _SECOND else 0
    if len(operands) <= place:
        return None
    given = operands[place]
    if opcode in _SAME or opcode in _SECOND or (opcode == "sort" and len(operands) == 1):
        return given
    if opcode == "get-tuple-element":
        inside = given.tuple_shapes
        return inside[proto.tuple_index] if 0 <= proto.tuple_index < len(inside) else None
    if opcode in _COMPARISONS:
        return _of_type(given, _PRED)
    if opcode in ("real", "imag"):
        return _of_type(given, _PARTS.get(given.element_type, given.element_type))
    worked_out = _WORKED_OUT.get(opcode)
    sizes = worked_out(proto, operands) if worked_out else None
    if sizes is None:
        return None
    return protos.Shape(
        element_type=given.element_type, dimensions=sizes, is_dynamic_dimension=[False] * len(sizes)
    )


def _transposed(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    sizes = operands[0].dimensions
    is_whole = sorted(proto.dimensions) == list(range(len(sizes)))
    return [sizes[d] for d in proto.dimensions] if is_whole else None


def _concatenated(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    sizes = list(operands[0].dimensions)
    place = proto.dimensions[0] if len(proto.dimensions) == 1 else -1
    if not 0 <= place < len(sizes) or any(len(o.dimensions) != len(sizes) for o in operands):
        return None
    sizes[place] = sum(o.dimensions[place] for o in operands)
    return _if_sizes(sizes)


def _padded(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    sizes, padding = operands[0].dimensions, proto.padding_config.dimensions
    if len(sizes) != len(padding):
        return None
    return _if_sizes(
        [
            size + max(size - 1, 0) * p.interior_padding + p.edge_padding_low + p.edge_padding_high
            for size, p in zip(sizes, padding, strict=True)
        ]
    )


def _multiplied(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    """Of a dot: batch dimensions, what is left of the left side, what is left of the right."""
    numbers = proto.dot_dimension_numbers
    batch, gone = numbers.lhs_batch_dimensions, numbers.lhs_contracting_dimensions
    other = {*numbers.rhs_batch_dimensions, *numbers.rhs_contracting_dimensions}
    if len(operands) != 2 or any(not 0 <= d < len(operands[0].dimensions) for d in batch):
        return None
    left, right = operands[0].dimensions, operands[1].dimensions
    return [
        *(left[d] for d in batch),
        *(size for d, size in enumerate(left) if d not in {*batch, *gone}),
        *(size for d, size in enumerate(right) if d not in other),
    ]


def _reduced(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    if len(operands) != 2:
        return None
    return [size for d, size in enumerate(operands[0].dimensions) if d not in proto.dimensions]


def _windowed(sizes: Sequence[int], window: protos.Window) -> list[int] | None:
    """How often a window fits into each dimension, as it moves over it."""
    if len(sizes) != len(window.dimensions):
        return None
    return _if_sizes([_positions(size, w) for size, w in zip(sizes, window.dimensions, strict=True)])


def _positions(size: int, window: protos.WindowDimension) -> int:
    reach = (size - 1) * window.base_dilation + 1 if size > 0 else 0
    reach += window.padding_low + window.padding_high
    covered = (window.size - 1) * window.window_dilation + 1
    return (reach - covered) // max(1, window.stride) + 1 if 0 < covered <= reach else 0


def _reduced_in_windows(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    return _windowed(operands[0].dimensions, proto.window) if len(operands) == 2 else None


def _convolved(proto: protos.Instruction, operands: Sequence[protos.Shape]) -> list[int] | None:
    """Of a convolution: batch, the kernel's output features, and the positions of the window."""
    numbers = proto.convolution_dimension_numbers
    if len(operands) != 2:
        return None
    left, right = operands[0].dimensions, operands[1].dimensions
    taken = (numbers.input_batch_dimension, *numbers.input_spatial_dimensions)
    places = (
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
        *numbers.output_spatial_dimensions,
    )
    if any(not 0 <= d < len(left) for d in taken) or sorted(places) != list(range(len(left))):
        return None
    positions = _windowed([left[d] for d in numbers.input_spatial_dimensions], proto.window)
    if positions is None or not 0 <= numbers.kernel_output_feature_dimension < len(right):
        return None
    batch = left[numbers.input_batch_dimension] // max(1, proto.batch_group_count)
    found = (batch, right[numbers.kernel_output_feature_dimension], *positions)
    return [size for _, size in sorted(zip(places, found, strict=True))]


def _if_sizes(sizes: list[int]) -> list[int] | None:
    return sizes if all(0 <= size < 2**63 for size in sizes) else None


_WORKED_OUT: dict[str, Callable[[protos.Instruction, Sequence[protos.Shape]], list[int] | None]] = {
    "transpose": _transposed,
    "concatenate": _concatenated,
    "pad": _padded,
    "dot": _multiplied,
    "reduce": _reduced,
    "reduce-window": _reduced_in_windows,
    "convolution": _convolved,
}


def _of_type(shape: protos.Shape, element_type: int) -> protos.Shape:
    changed = protos.Shape()
    changed.CopyFrom(shape)
    changed.element_type = element_type
    return changed
