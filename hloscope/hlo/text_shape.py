"""Shapes in HLO text: arrays with layouts and tiles, tuples, tokens, buffers; each distinct text read once."""

from __future__ import annotations

import re

from hloscope.hlo import protos
from hloscope.hlo.shape import (
    _PRIMITIVE_TYPES,  # pyright: ignore[reportPrivateUsage]  # one table of types for both directions
)
from hloscope.hlo.text_scan import INDEX, MalformedError, Scanner, group_end, integer, integers, split

_TYPES = {name: number for number, (name, _) in _PRIMITIVE_TYPES.items()}
_TUPLE, _BUFFER = _TYPES["tuple"], _TYPES["buffer"]
# An array. A brace belongs to it if a layout is in it: `-> f32[8] {` opens a computation.
ARRAY = re.compile(r"[a-z]\w*+\[[^\[\](){}]*+\](?:\{\}|\s*+\{(?=[\d:])[^{}]*+\})?+", re.ASCII)
_ARRAY_PARTS = re.compile(r"(\w+)\[([^\]]*)\]\s*(?:\{([^:]*?)(?::(.*))?\})?", re.ASCII | re.DOTALL)
_TUPLE_TOKEN = re.compile(
    rf"(?:\s++|{INDEX})*+(?:(\()|(\))|(,)|b(\()|({ARRAY.pattern}))", re.ASCII | re.DOTALL
)
_LAYOUT_ITEM = re.compile(
    r"\s*+(?:(T)((?:\([^()]*\))+)|(SC)((?:\([^()]*\))+)|([A-Z]|[#*])\(([^()]*)\))", re.DOTALL
)
_NESTED_LAYOUT = re.compile(r"\{[\d,]*:", re.ASCII)
_NUMBERED = {
    "L": "tail_padding_alignment_in_elements",
    "E": "element_size_in_bits",
    "S": "memory_space",
    "M": "dynamic_shape_metadata_prefix_bytes",
}
_POINTERS = {"#": "index_primitive_type", "*": "pointer_primitive_type"}
# How the dimensions of a sparse array are stored: dense, compressed, singleton, loosely compressed.
_LEVELS = {"D": 0, "C": 1, "S": 2, "H": 3}
# Both mean "not a number" in a message: a `*` in a tile, a `?` among dimensions.
_INT64_MIN = -(2**63)
_MOST_DIMENSIONS = 64
# XLA nests a few levels; protobuf itself gives up not far beyond this.
_DEEPEST = 24


class Shapes:
    """Reads shapes and remembers them: a module has few distinct ones."""

    __slots__ = ("_known", "_messages", "_written")

    def __init__(self) -> None:
        self._known: dict[str, protos.Shape] = {}
        self._written: dict[str, bytes] = {}
        self._messages: dict[bytes, protos.Shape] = {}

    def read(self, scanner: Scanner) -> bytes:
        """The shape here, as an instruction's message has it; the scanner goes past it."""
        start = scanner.blanks()
        end = shape_end(scanner, start)
        if end == start:
            raise scanner.error("expected a shape")
        scanner.at = end
        text = scanner.text[start:end]
        known = self._written.get(text)
        if known is None:
            try:
                known = self._written[text] = self.parse(text).SerializeToString()
            except ValueError as error:
                raise scanner.error(str(error), start) from error
        return known

    def of(self, written: bytes) -> protos.Shape:
        """The shape that an instruction's message has. It is shared: copy it, do not change it."""
        known = self._messages.get(written)
        if known is None:
            known = self._messages[written] = protos.Shape.FromString(written)
        return known

    def parse(self, text: str) -> protos.Shape:
        """The shape that a text is. Raises ValueError (or MalformedError) where it is none."""
        known = self._known.get(text)
        if known is None:
            known = self._tuple(text) if text[:1] == "(" or text[:2] == "b(" else _array(text)
            self._known[text] = known
        return known

    def _tuple(self, text: str) -> protos.Shape:
        root = protos.Shape()
        open_ = [root]
        at = 0
        while open_:
            found = _TUPLE_TOKEN.match(text, at)
            if found is None or len(open_) > _DEEPEST:
                problem = "shapes are nested too deeply" if found else "this tuple of shapes is damaged"
                raise MalformedError(problem)
            at = found.end()
            opens, closes, comma, buffer, array = found.groups()
            if closes:
                open_.pop()
            elif opens or buffer:
                # The outermost bracket is the root itself.
                shape = root if found.start() == 0 else open_[-1].tuple_shapes.add()
                shape.element_type = _BUFFER if buffer else _TUPLE
                if shape is not root:
                    open_.append(shape)
            elif not comma:
                open_[-1].tuple_shapes.add().CopyFrom(self.parse(array))
        if text[at:].strip():
            raise MalformedError("this tuple of shapes is damaged")
        return root


def shape_end(scanner: Scanner, at: int) -> int:
    """The place after the shape at `at`; `at` itself where none is."""
    text = scanner.text
    found = ARRAY.match(text, at)
    if found:
        end = found.end()
        # Braces within a layout: the physical shape of a sparse array.
        nested = text[end : end + 1] == "{" and _NESTED_LAYOUT.match(text, end)
        return scanner.group_end(end) if nested else end
    opens = at if text[at : at + 1] == "(" else at + 1 if text[at : at + 2] == "b(" else -1
    return at if opens < 0 else scanner.group_end(opens)


def _array(text: str) -> protos.Shape:
    found = _ARRAY_PARTS.fullmatch(text)
    if found is None:
        raise MalformedError("expected a shape")
    name, dimensions, order, rest = found.groups()
    if name not in _TYPES or _TYPES[name] in (_TUPLE, _BUFFER):
        raise MalformedError(f"there is no element type {name!r}")
    shape = protos.Shape(element_type=_TYPES[name])
    sizes = split(dimensions)
    if len(sizes) > _MOST_DIMENSIONS:
        raise MalformedError(f"an array of {len(sizes)} dimensions is more than anyone has")
    for part in sizes:
        size, dynamic = _dimension(part)
        shape.dimensions.append(size)
        shape.is_dynamic_dimension.append(dynamic)
    if order is not None or (not shape.dimensions and name not in ("token", "opaque")):
        _layout(shape, order or "", rest or "")
    return shape


def _dimension(text: str) -> tuple[int, bool]:
    if text == "?":
        return _INT64_MIN, True
    size = integer(text.removeprefix("<="))
    if size < 0:
        raise MalformedError("a dimension is negative")
    return size, text.startswith("<=")


def _layout(shape: protos.Shape, order: str, rest: str) -> None:
    layout = shape.layout
    layout.minor_to_major.extend(integers(order))
    if sorted(layout.minor_to_major) != list(range(len(shape.dimensions))):
        raise MalformedError("the layout does not fit the dimensions")
    layout.tail_padding_alignment_in_elements = 1
    rest = rest.rstrip()
    at = 0
    while at < len(rest):
        if rest.startswith("P(", at):
            # A shape, with brackets of its own.
            end = group_end(rest, at + 1)
            _layout_item(layout, "P", rest[at + 2 : end - 1])
            at = end
            continue
        found = _LAYOUT_ITEM.match(rest, at)
        if found is None:
            raise MalformedError("the layout is damaged")
        at = found.end()
        _layout_item(layout, *[g for g in found.groups() if g is not None])


def _layout_item(layout: protos.Layout, kind: str, value: str) -> None:
    if kind == "T":
        for tile in value[1:-1].split(")("):
            sizes = [_INT64_MIN if d.strip() == "*" else integer(d) for d in split(tile)]
            layout.tiles.add(dimensions=sizes)
    elif kind == "SC":
        for config in value[1:-1].split(")("):
            dimension, _, indices = config.partition(":")
            layout.split_configs.add(dimension=integer(dimension), split_indices=integers(indices))
    elif kind == "P":
        if "P(" in value:
            raise MalformedError("a physical shape has a physical shape of its own")
        layout.physical_shape.CopyFrom(Shapes().parse(value.strip()))
    elif kind == "D":
        _levels(layout, value)
    elif kind in _NUMBERED:
        setattr(layout, _NUMBERED[kind], integer(value))
    elif kind in _POINTERS and value in _TYPES:
        setattr(layout, _POINTERS[kind], _TYPES[value])
    else:
        raise MalformedError(f"a layout has no {kind}({value})")


def _levels(layout: protos.Layout, value: str) -> None:
    """`D(C+~,D)`: how each dimension is stored; `+` has repeated entries, `~` is not in order."""
    for part in split(value):
        if part[:1] not in _LEVELS:
            raise MalformedError(f"there is no dimension level {part!r}")
        layout.dim_level_types.append(_LEVELS[part[0]])
        layout.dim_unique.append("+" not in part)
        layout.dim_ordered.append("~" not in part)
