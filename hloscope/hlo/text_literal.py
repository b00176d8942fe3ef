"""Constants in HLO text: the numbers of a literal, in the fields that a message keeps them in."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

from hloscope.hlo import protos
from hloscope.hlo.shape import Shape, decode_shape
from hloscope.hlo.text_scan import MalformedError, split
from hloscope.hlo.text_shape import ARRAY

_NUMBER = re.compile(
    r"\(\s*+([^\s(),]++)\s*+,\s*+([^\s(),]++)\s*+\)|(\.\.\.)|(-?nan\(0x[0-9a-fA-F]++\)|[^\s,{}()]++)"
)
_INTEGER = re.compile(r"-?[0-9]{1,20}|true|false", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]{1,400}+\.?[0-9]{0,400}+|\.[0-9]{1,400}+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII
)
_WORDS = {"true": 1.0, "false": 0.0, "inf": math.inf, "-inf": -math.inf, "nan": math.nan, "-nan": -math.nan}
# Where a message keeps elements: as numbers of this range, or packed as bytes in this struct format.
_INTEGERS = {
    "s32": ("s32s", -(2**31), 2**31), "s64": ("s64s", -(2**63), 2**63),
    "u32": ("u32s", 0, 2**32), "u64": ("u64s", 0, 2**64), "pred": ("preds", 0, 2),
}  # fmt: skip
_PACKED = {"s8": ("s8s", "b"), "u8": ("u8s", "B"), "s16": ("s16s", "h"), "u16": ("u16s", "H")}
_FLOATS = {"f32": "f32s", "f64": "f64s"}
_COMPLEX = {"c64": "c64s", "c128": "c128s"}


def literal(shape: protos.Shape, text: str) -> protos.Literal | None:
    """The literal of a constant; None where the text leaves its elements out (`{...}`) or none are kept.

    Raises MalformedError where the elements do not fit the shape.
    """
    made = protos.Literal(shape=_untiled(shape))
    decoded = decode_shape(shape)
    if decoded.tuple_shapes is not None:
        return _tuple(made, shape, text)
    numbers = list(_NUMBER.finditer(text))
    # One number for all elements is how people abbreviate; what is meant is not said.
    if any(m[3] for m in numbers) or (len(numbers) == 1 and decoded.dimensions and "{" not in text):
        return None
    if decoded.is_array and len(numbers) != decoded.elements:
        raise MalformedError(f"{decoded.short} has {decoded.elements} elements, this constant {len(numbers)}")
    kept = _fill(made, decoded.element_type, _in_memory_order(numbers, decoded))
    return made if kept else None


def _untiled(shape: protos.Shape) -> protos.Shape:
    """A literal's own shape: in the compiler's memory, so without the device's tiles and memory space."""
    plain = protos.Shape()
    plain.CopyFrom(shape)
    if shape.HasField("layout"):
        plain.ClearField("layout")
        plain.layout.minor_to_major.extend(shape.layout.minor_to_major)
        plain.layout.tail_padding_alignment_in_elements = 1
    return plain


def _tuple(made: protos.Literal, shape: protos.Shape, text: str) -> protos.Literal | None:
    """`( f32[] 1, s32[2] {3, 4} )`: the parts are read one level deep, which is all that XLA prints."""
    parts = split(text.strip()[1:-1])
    if len(parts) != len(shape.tuple_shapes):
        raise MalformedError(f"a tuple of {len(shape.tuple_shapes)} has a constant of {len(parts)} parts")
    for inner, part in zip(shape.tuple_shapes, parts, strict=True):
        typed = ARRAY.match(part)
        made_inner = None if inner.tuple_shapes else literal(inner, part[typed.end() :] if typed else part)
        if made_inner is None:
            return None
        made.tuple_literals.append(made_inner)
    return made


def _in_memory_order(numbers: list[re.Match[str]], shape: Shape) -> list[re.Match[str]]:
    """Text lists elements row by row, a message as they lie in memory."""
    order = shape.layout.minor_to_major[::-1] if shape.layout else ()
    if order == tuple(range(len(order))):
        return numbers
    import numpy as np

    places = np.arange(len(numbers)).reshape(shape.dimensions).transpose(order).reshape(-1)
    return [numbers[i] for i in places]


def _fill(made: protos.Literal, kind: str, numbers: Sequence[re.Match[str]]) -> bool:
    """Put the elements where this type keeps them; False for a type whose elements are not kept."""
    if kind in _INTEGERS:
        field, low, high = _INTEGERS[kind]
        getattr(made, field).extend(_integers(numbers, low, high))
    elif kind in _PACKED:
        field, form = _PACKED[kind]
        bits = 8 * struct.calcsize(form)
        low = 0 if form.isupper() else -(2 ** (bits - 1))
        values = _integers(numbers, low, low + 2**bits)
        setattr(made, field, struct.pack(f"<{len(values)}{form}", *values))
    elif kind in _FLOATS:
        getattr(made, _FLOATS[kind]).extend(
            _narrow(_float(m[4])) if kind == "f32" else _float(m[4]) for m in numbers
        )
    elif kind in _COMPLEX:
        for found in numbers:
            getattr(made, _COMPLEX[kind]).extend(_complex(found, kind))
    elif kind in ("f16", "bf16"):
        values = [_float(m[4]) for m in numbers]
        setattr(made, kind + "s", b"".join(map(_half if kind == "f16" else _bfloat16, values)))
    else:
        return False
    return True


def _integers(numbers: Sequence[re.Match[str]], low: int, high: int) -> list[int]:
    values: list[int] = []
    for found in numbers:
        text: str | None = found[4]
        if text is None or _INTEGER.fullmatch(text) is None:
            raise MalformedError("expected an integer in this constant")
        value = int(_WORDS[text]) if text in ("true", "false") else int(text)
        if value == -1 and high == 2**64:
            value = high - 1  # XLA reads u64's largest so
        if not low <= value < high:
            raise MalformedError(f"{value} does not fit the constant's type")
        values.append(value)
    return values


def _float(text: str | None) -> float:
    if text is not None:
        if text in _WORDS:
            return _WORDS[text]
        if text.startswith(("nan(", "-nan(")):
            return math.nan
        if _FLOAT.fullmatch(text):
            return float(text)
    raise MalformedError("expected a number in this constant")


def _complex(found: re.Match[str], kind: str) -> list[float]:
    parts = [found[1], found[2]] if found[4] is None else [found[4], "0"]
    values = [_float(part) for part in parts]
    return [_narrow(v) for v in values] if kind == "c64" else values


def _narrow(value: float) -> float:
    """The nearest float: what rounds to the largest one is that, what lies beyond is infinity."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _half(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


def _bfloat16(value: float) -> bytes:
    """The upper half of a float, rounded to the nearest, ties to even."""
    bits = int.from_bytes(struct.pack("<f", _narrow(value)), "little")
    if not math.isnan(value):
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16 & 0xFFFF).to_bytes(2, "little")
