"""Large arrays that one elementwise pass makes and only one other reads: fusions that the compiler did not make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hloscope.analysis.uses import Use, uses_of_part
from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction, Module, Shape

_ARITHMETIC = frozenset({
    "add", "subtract", "multiply", "divide", "negate", "exponential", "log", "tanh", "logistic", "rsqrt", "sqrt",
    "power", "maximum", "minimum", "select", "convert", "abs", "and", "or", "xor", "clamp", "sine", "cosine",
})  # fmt: skip
# What else a fusion may hold and still be a pass over its elements, each by itself.
_ALONG = frozenset({
    "parameter", "constant", "broadcast", "iota", "bitcast", "reshape", "compare", "tuple", "get-tuple-element",
    "fusion", "slice", "not", "is-finite", "reduce-precision", "bitcast-convert", "sign", "expm1", "log1p", "erf",
})  # fmt: skip
_PASSES = _ARITHMETIC | _ALONG


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An array in HBM between two elementwise passes, and the copies on the way from the one to the other."""

    producer: Instruction
    consumer: Instruction
    index: int | None  # of the value in the producer's tuple
    value: Shape  # as it is made
    read: Shape  # as it is read
    copies: tuple[Instruction, ...]

    @property
    def reason(self) -> str:
        """What in the module keeps the two apart, in words."""
        if self.copies:
            return "a copy into another layout stands between them"
        result = self.consumer.shape
        layouts = {
            leaf.layout.minor_to_major
            for leaf in result.parts
            if leaf.layout and leaf.dimensions == self.read.dimensions
        }
        if self.read.layout and layouts and self.read.layout.minor_to_major not in layouts:
            return "the second writes another layout than it reads"
        return "the module does not tell why"


def lost_edges(module: Module, smallest_bytes: int) -> Iterator[Edge]:
    """Every such edge whose array takes `smallest_bytes` or more, padding included."""
    for computation in module.control_computations:
        for producer in computation.instructions:
            if not _is_elementwise(producer):
                continue
            for index, leaf in enumerate(producer.shape.tuple_shapes or (producer.shape,)):
                if leaf.is_tuple or leaf.memory_space != 0 or leaf.padded_bytes < smallest_bytes:
                    continue
                found = uses_of_part(producer, (index,) if producer.shape.is_tuple else ())
                if len({u.user.id for u in found}) == 1 and _is_elementwise(found[0].user):
                    yield _edge(producer, index if producer.shape.is_tuple else None, found[0], leaf)


def _edge(producer: Instruction, index: int | None, use: Use, made: Shape) -> Edge:
    copies: list[Instruction] = []
    value = use.value
    while value is not producer and value.operands:
        if value.opcode in ("copy", "copy-start"):
            copies.append(value)
        value = value.operands[0]
    return Edge(
        producer=producer,
        consumer=use.user,
        index=index,
        value=made,
        read=use.value.shape,
        copies=tuple(copies),
    )


def _is_elementwise(instruction: Instruction) -> bool:
    if instruction.opcode != "fusion":
        return instruction.opcode in _ARITHMETIC
    opcodes = body_opcodes(instruction)
    return opcodes <= _PASSES and not opcodes.isdisjoint(_ARITHMETIC)
