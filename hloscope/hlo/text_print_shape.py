"""Shapes and literals as HLO text: the inverse of `text_shape` and `text_literal`."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

from hloscope.errors import UserError
from hloscope.hlo import protos
from hloscope.hlo.shape import (
    _PRIMITIVE_TYPES,  # pyright: ignore[reportPrivateUsage]  # one table of types for both directions
)

_NAMES = {number: name for number, (name, _) in _PRIMITIVE_TYPES.items()}
_INT64_MIN = -(2**63)
_LEVELS = "DCSH"
# Elements of these are in fields of numbers; of the rest in bytes, in this struct format.
_NUMBERS = {
    "s32": "s32s", "s64": "s64s", "u32": "u32s", "u64": "u64s", "pred": "preds", "f32": "f32s", "f64": "f64s",
    "c64": "c64s", "c128": "c128s",
}  # fmt: skip
_PACKED = {
    "s8": ("s8s", "b"),
    "u8": ("u8s", "B"),
    "s16": ("s16s", "h"),
    "u16": ("u16s", "H"),
    "f16": ("f16s", "e"),
}
_LEFT_OUT = "{...}"


def shape_text(shape: protos.Shape) -> str:
    """A shape with all of its layout. Raises UserError for a type that text has no name for."""
    name = _NAMES.get(shape.element_type)
    if name is None:
        raise UserError(f"HLO text has no name for the element type {shape.element_type}: export the proto")
    if name == "tuple":
        return f"({', '.join(map(shape_text, shape.tuple_shapes))})"
    if name == "buffer":
        return f"b({', '.join(map(shape_text, shape.tuple_shapes))})"
    dynamic = [*shape.is_dynamic_dimension, *[False] * len(shape.dimensions)]
    sizes = ",".join(
        "?" if size == _INT64_MIN else f"<={size}" if bounded else str(size)
        for size, bounded in zip(shape.dimensions, dynamic, strict=False)
    )
    is_plain = not shape.HasField("layout") or name in ("token", "opaque")
    return f"{name}[{sizes}]" if is_plain else f"{name}[{sizes}]{_layout(shape.layout)}"


def _layout(layout: protos.Layout) -> str:
    items = "".join(_layout_items(layout))
    inside = ",".join(map(str, layout.minor_to_major)) + (f":{items}" if items else "")
    return f"{{{inside}}}" if inside else ""


def _layout_items(layout: protos.Layout) -> Iterator[str]:
    if layout.dim_level_types:
        yield f"D({','.join(_levels(layout))})"
    if layout.tiles:
        yield "T" + "".join(f"({','.join(map(_tile_size, tile.dimensions))})" for tile in layout.tiles)
    if layout.tail_padding_alignment_in_elements not in (0, 1):
        yield f"L({layout.tail_padding_alignment_in_elements})"
    if layout.index_primitive_type:
        yield f"#({_NAMES[layout.index_primitive_type]})"
    if layout.pointer_primitive_type:
        yield f"*({_NAMES[layout.pointer_primitive_type]})"
    if layout.element_size_in_bits:
        yield f"E({layout.element_size_in_bits})"
    if layout.memory_space:
        yield f"S({layout.memory_space})"
    if layout.split_configs:
        yield "SC" + "".join(
            f"({c.dimension}:{','.join(map(str, c.split_indices))})" for c in layout.split_configs
        )
    if layout.HasField("physical_shape"):
        yield f"P({shape_text(layout.physical_shape)})"
    if layout.dynamic_shape_metadata_prefix_bytes:
        yield f"M({layout.dynamic_shape_metadata_prefix_bytes})"


def _tile_size(size: int) -> str:
    return "*" if size == _INT64_MIN else str(size)


def _levels(layout: protos.Layout) -> Iterator[str]:
    """How each dimension of a sparse array is stored; a missing flag means the usual, unique and ordered."""
    for i, level in enumerate(layout.dim_level_types):
        unique = layout.dim_unique[i] if i < len(layout.dim_unique) else True
        ordered = layout.dim_ordered[i] if i < len(layout.dim_ordered) else True
        yield _LEVELS[level] + ("" if unique else "+") + ("" if ordered else "~")


def literal_text(literal: protos.Literal) -> str:
    """The elements of a literal, row by row; `{...}` where the message does not hold them."""
    shape = literal.shape
    name = _NAMES.get(shape.element_type, "")
    if name == "tuple":
        parts = zip(shape.tuple_shapes, literal.tuple_literals, strict=False)
        return f"( {', '.join(f'{shape_text(s)} {literal_text(part)}' for s, part in parts)} )"
    elements = _elements(literal, name)
    if elements is None or len(elements) != math.prod(shape.dimensions):
        return _LEFT_OUT
    if not shape.dimensions:
        return {"1": "true", "0": "false"}[elements[0]] if name == "pred" else elements[0]
    return _nested(_row_by_row(elements, shape), shape.dimensions)


def _elements(literal: protos.Literal, name: str) -> list[str] | None:
    """The elements as text, as they lie in memory."""
    if name in ("c64", "c128"):
        parts = [_number(v) for v in getattr(literal, _NUMBERS[name])]
        return [f"({real}, {imaginary})" for real, imaginary in zip(parts[::2], parts[1::2], strict=False)]
    if name in _NUMBERS:
        values = getattr(literal, _NUMBERS[name])
        if name == "f32":
            return [_number(v, digits=9) for v in values]
        return [_number(v) if name == "f64" else str(int(v)) for v in values]
    if name == "bf16":
        halves = struct.iter_unpack("<2s", literal.bf16s) if len(literal.bf16s) % 2 == 0 else ()
        return [_number(struct.unpack("<f", b"\0\0" + half)[0], digits=9) for (half,) in halves]
    if name not in _PACKED:
        return None
    field, form = _PACKED[name]
    data: bytes = getattr(literal, field)
    if len(data) % struct.calcsize(form):
        return None
    values = struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data)
    return [_number(v, digits=9) if form == "e" else str(v) for v in values]


def _number(value: float, *, digits: int = 17) -> str:
    """A number that reads back as the same: 9 digits do for a float, 17 for a double."""
    return "nan" if math.isnan(value) else f"{value:.{digits}g}"


def _row_by_row(elements: list[str], shape: protos.Shape) -> list[str]:
    """Text lists elements row by row, a message as they lie in memory."""
    order = tuple(shape.layout.minor_to_major)[::-1]
    if order in ((), tuple(range(len(shape.dimensions)))) or sorted(order) != list(
        range(len(shape.dimensions))
    ):
        return elements
    import numpy as np

    places = np.arange(len(elements)).reshape([shape.dimensions[d] for d in order])
    return [elements[i] for i in places.transpose(np.argsort(order)).reshape(-1)]


def _nested(elements: Sequence[str], dimensions: Sequence[int]) -> str:
    if len(dimensions) <= 1:
        return f"{{{', '.join(elements)}}}"
    stride = len(elements) // dimensions[0] if dimensions[0] else 0
    rows = (elements[i * stride : (i + 1) * stride] for i in range(dimensions[0]))
    return f"{{ {', '.join(_nested(row, dimensions[1:]) for row in rows)} }}"
