"""Shapes: element type, dimensions, layout, tiles and memory space, with the bytes they take.

A shape's text is XLA's own: `bf16[28160,4096]{1,0:T(8,128)(2,1)S(1)}`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from google.protobuf.message import DecodeError

from hloscope.errors import UserError
from hloscope.hlo import protos

# XLA's PrimitiveType numbers (xla_data.proto) with the bits that one element takes in memory.
# Types below a byte are packed only where the layout says so (`E(4)`); else they take a whole byte.
_PRIMITIVE_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64),
    6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64),
    10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64), 16: ("bf16", 16), 18: ("c128", 128),
    13: ("tuple", 0), 14: ("opaque", 0), 17: ("token", 0),
    19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8),
    28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 33: ("f8e8m0fnu", 8),
    21: ("s4", 8), 22: ("u4", 8), 26: ("s2", 8), 27: ("u2", 8), 30: ("s1", 8), 31: ("u1", 8), 32: ("f4e2m1fn", 8),
    34: ("buffer", 0),
}  # fmt: skip

# Memory spaces of a TPU layout, by the number after `S` (seen in modules of libtpu 0.0.42 and 0.0.50).
MEMORY_SPACES: dict[int, str] = {0: "hbm", 1: "vmem", 2: "sflag", 5: "host", 6: "smem"}

# Elements, or bits with their padding, that only damage makes: products of a few such are still floats.
_MOST = 2**200

# A tile dimension of int64-min means "all of this dimension" and is printed as `*`.
_COMBINE = -(2**63)


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies in memory. `minor_to_major` lists dimensions from fastest to slowest varying."""

    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...] = ()
    memory_space: int = 0
    element_size_in_bits: int = 0

    def __str__(self) -> str:
        """XLA's text, braces included; empty for an untiled scalar, as there."""
        tail = "".join("(" + ",".join("*" if d == _COMBINE else str(d) for d in t) + ")" for t in self.tiles)
        tail = f"T{tail}" if tail else ""
        tail += f"E({self.element_size_in_bits})" if self.element_size_in_bits else ""
        tail += f"S({self.memory_space})" if self.memory_space else ""
        inside = ",".join(map(str, self.minor_to_major)) + (f":{tail}" if tail else "")
        return "{" + inside + "}" if inside else ""


@dataclass(frozen=True)
class Shape:
    """An array's, tuple's, token's or opaque's shape.

    `dimensions` are upper bounds where `dynamic` says so. `tuple_shapes` is None unless it is a tuple.
    """

    element_type: str
    dimensions: tuple[int, ...] = ()
    layout: Layout | None = None
    tuple_shapes: tuple[Shape, ...] | None = None
    dynamic: tuple[bool, ...] = ()
    element_bits: int = 0

    @property
    def is_tuple(self) -> bool:
        """Whether this is a tuple of other shapes."""
        return self.tuple_shapes is not None

    @property
    def is_array(self) -> bool:
        """Whether this holds elements (not a tuple, token or opaque value)."""
        return self.element_bits > 0

    @cached_property
    def elements(self) -> int:
        """Number of elements of an array; 0 of anything else."""
        return math.prod(self.dimensions) if self.is_array else 0

    @property
    def memory_space(self) -> int:
        """The layout's memory space number (0 is HBM on a TPU, 1 VMEM)."""
        return self.layout.memory_space if self.layout else 0

    @cached_property
    def bytes(self) -> int:
        """Bytes of the elements alone, without tile padding; of a tuple, the sum of its leaves."""
        if self.tuple_shapes is not None:
            return sum(s.bytes for s in self.tuple_shapes)
        return self.elements * self._bits // 8 if self._bits % 8 == 0 else -(-self.elements * self._bits // 8)

    @cached_property
    def padded_bytes(self) -> int:
        """Bytes that the tiled layout takes in memory; of a tuple, the sum of its leaves.

        Each tile pads the most minor physical dimensions up to a multiple of itself, then the next tile
        is laid over the result (XLA, "Tiled layout").
        """
        if self.tuple_shapes is not None:
            return sum(s.padded_bytes for s in self.tuple_shapes)
        if not self.layout or not self.layout.tiles or not self.is_array:
            return self.bytes
        if sorted(self.layout.minor_to_major) != list(range(len(self.dimensions))):
            raise UserError(f"the layout of {self} does not fit its dimensions: the file is damaged")
        if any(size < 1 and size != _COMBINE for tile in self.layout.tiles for size in tile):
            raise UserError(f"the layout of {self} has a tile without a size: the file is damaged")
        bits = self._bits * math.prod(_tiled_dimensions(self))
        if bits > _MOST:
            raise UserError(f"the tiles of {self} pad it beyond all measure: the file is damaged")
        return -(-bits // 8)

    @cached_property
    def hbm_bytes(self) -> int:
        """Padded bytes of the parts that lie in HBM."""
        if self.tuple_shapes is not None:
            return sum(s.hbm_bytes for s in self.tuple_shapes)
        return self.padded_bytes if self.memory_space == 0 else 0

    @cached_property
    def is_sized(self) -> bool:
        """Whether all of it has a size: no dimension is a bound only, no type unknown to this version."""
        if self.tuple_shapes is not None:
            return all(s.is_sized for s in self.tuple_shapes)
        return not self.dynamic and not self.element_type.startswith("type")

    @property
    def _bits(self) -> int:
        return (self.layout and self.layout.element_size_in_bits) or self.element_bits

    def leaves(self) -> Iterator[tuple[tuple[int, ...], Shape]]:
        """Every (shape index, non-tuple shape) in this shape, in order."""
        if self.tuple_shapes is None:
            yield (), self
            return
        for i, shape in enumerate(self.tuple_shapes):
            for index, leaf in shape.leaves():
                yield (i, *index), leaf

    @cached_property
    def parts(self) -> tuple[Shape, ...]:
        """Every non-tuple shape in this shape, in order."""
        return (self,) if self.tuple_shapes is None else tuple(p for s in self.tuple_shapes for p in s.parts)

    @cached_property
    def spaces(self) -> frozenset[int]:
        """The memory spaces that its parts lie in."""
        return frozenset(p.memory_space for p in self.parts)

    def at(self, index: tuple[int, ...]) -> Shape:
        """The shape at a shape index, e.g. `(0, 2)`. Raises IndexError where there is none."""
        shape = self
        for i in index:
            if shape.tuple_shapes is None:
                raise IndexError(f"{shape.short} is not a tuple")
            shape = shape.tuple_shapes[i]
        return shape

    @cached_property
    def short(self) -> str:
        """The shape without its layout, e.g. `bf16[28160,4096]`, as a person would write it."""
        if self.tuple_shapes is not None:
            return "(" + ", ".join(s.short for s in self.tuple_shapes) + ")"
        if not self.is_array:
            return f"{self.element_type}[]"
        dynamic = self.dynamic or (False,) * len(self.dimensions)
        dims = (f"<={d}" if dyn else str(d) for d, dyn in zip(self.dimensions, dynamic, strict=False))
        return f"{self.element_type}[{','.join(dims)}]"

    @cached_property
    def folded(self) -> str:
        """The arrays in the shape without layout, largest first, equal ones folded:
        `2 x bf16[163840,1024], f32[163840]`."""
        if self.tuple_shapes is None:
            return self.short
        size = {part.short: part.bytes for part in self.parts}
        counts = Counter(part.short for part in self.parts)
        ordered = sorted(counts, key=lambda text: (-size[text], text))
        return ", ".join(text if counts[text] == 1 else f"{counts[text]} x {text}" for text in ordered)

    def __str__(self) -> str:
        """The shape with its layout, as XLA prints it."""
        if self.tuple_shapes is not None:
            return "(" + ", ".join(map(str, self.tuple_shapes)) + ")"
        return self.short + (str(self.layout) if self.layout and self.is_array else "")


def _tiled_dimensions(shape: Shape) -> list[int]:
    """Physical dimensions of a tiled array, major to minor, padded for every tile."""
    layout = shape.layout
    assert layout is not None
    dims = [shape.dimensions[i] for i in reversed(layout.minor_to_major)]
    for tile in layout.tiles:
        dims = [1] * (len(tile) - len(dims)) + dims
        keep, covered = dims[: len(dims) - len(tile)], dims[len(dims) - len(tile) :]
        covered, tile_sizes = _merge_combined(covered, tile)
        counts = [-(-d // t) for d, t in zip(covered, tile_sizes, strict=True)]
        dims = keep + counts + tile_sizes
    return dims


def _merge_combined(covered: list[int], tile: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """A `*` in a tile joins its dimension with the next more minor one."""
    dims: list[int] = []
    sizes: list[int] = []
    pending = 1
    for dim, size in zip(covered, tile, strict=True):
        if size == _COMBINE:
            pending *= dim
            continue
        dims.append(dim * pending)
        sizes.append(size)
        pending = 1
    return dims, sizes


class KnownShapes(dict[bytes, Shape]):
    """Shapes by the bytes of their messages, each decoded when it is first asked for; equal ones are one object."""

    def __init__(self) -> None:
        self._equal: dict[Shape, Shape] = {}  # one shape can be spelled in different bytes

    def __missing__(self, message: bytes) -> Shape:
        try:
            proto = protos.Shape.FromString(message)
        except DecodeError as error:
            raise UserError("a shape is damaged: dump the module again") from error
        # Tuples have many elements, most of them of shapes that are known.
        shape = decode_shape(proto, lambda element: self[element.SerializeToString()])
        shape = self[message] = self._equal.setdefault(shape, shape)
        return shape


def decode_shape(proto: protos.Shape, element: Callable[[protos.Shape], Shape] | None = None) -> Shape:
    """A Shape from its proto; `element` decodes the shapes in a tuple."""
    name, bits = _PRIMITIVE_TYPES.get(proto.element_type, (f"type{proto.element_type}", 0))
    if name == "tuple":
        return Shape("tuple", tuple_shapes=tuple(map(element or decode_shape, proto.tuple_shapes)))
    if name == "buffer" and proto.tuple_shapes:
        return decode_shape(proto.tuple_shapes[0])
    dynamic = tuple(proto.is_dynamic_dimension[:])
    dimensions = tuple(proto.dimensions[:])
    if math.prod(dimensions) > _MOST:
        raise UserError(f"a shape of {len(dimensions)} dimensions is beyond all measure: the file is damaged")
    return Shape(
        name,
        dimensions,
        _decode_layout(proto.layout) if proto.HasField("layout") else None,
        dynamic=dynamic if any(dynamic) else (),
        element_bits=bits,
    )


def _decode_layout(proto: protos.Layout) -> Layout:
    return Layout(
        tuple(proto.minor_to_major[:]),
        tuple([tuple(t.dimensions[:]) for t in proto.tiles]),
        proto.memory_space,
        proto.element_size_in_bits,
    )
