"""Bounds of integer values, where the program itself shows them: `top_k` over 8 experts gives 0 to 7."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.values import origin
from hloscope.hlo import Instruction

_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """Inclusive bounds of every element of an integer array; None where it is not bounded."""

    low: int | None
    high: int | None

    def within(self, low: int, high: int) -> bool:
        """Whether every element surely lies in [low, high]."""
        return self.low is not None and self.high is not None and low <= self.low and self.high <= high


UNBOUNDED = IntegerRange(None, None)


def integer_range(instruction: Instruction, depth: int = 0) -> IntegerRange:
    """Bounds of an integer value; UNBOUNDED where nothing is known."""
    value = origin(instruction)
    if depth > _DEEPEST:
        return UNBOUNDED
    if value.opcode == "constant":
        return _constant(value)
    if value.opcode == "iota":
        dimension = value.dimensions[0] if value.dimensions else 0
        return IntegerRange(0, value.shape.dimensions[dimension] - 1)
    if value.opcode in ("broadcast", "slice", "reverse"):
        return integer_range(value.operands[0], depth + 1)
    if value.opcode == "get-tuple-element" and value.operands[0].opcode == "sort":
        return integer_range(value.operands[0].operands[value.proto.tuple_index], depth + 1)
    if value.opcode == "sort" and len(value.operands) == 1:
        return integer_range(value.operands[0], depth + 1)
    if value.opcode in ("maximum", "minimum"):
        left, right = (integer_range(o, depth + 1) for o in value.operands)
        return _extreme(left, right, upper=value.opcode == "maximum")
    if value.opcode == "clamp":
        low, inner, high = (integer_range(o, depth + 1) for o in value.operands)
        return _extreme(_extreme(inner, low, upper=True), high, upper=False)
    if value.opcode == "select":
        left, right = (integer_range(o, depth + 1) for o in value.operands[1:])
        return _union(left, right)
    return UNBOUNDED


def integer_constant(instruction: Instruction) -> int | None:
    """The one value that every element of an integer (or float) constant or its broadcast has; else None."""
    bounds = integer_range(instruction)
    return bounds.low if bounds.low is not None and bounds.low == bounds.high else None


def _constant(constant: Instruction) -> IntegerRange:
    literal = constant.proto.literal
    for values in (literal.s32s, literal.s64s, literal.u32s, literal.u64s):
        if values:
            return IntegerRange(min(values), max(values))
    return UNBOUNDED


def _extreme(left: IntegerRange, right: IntegerRange, *, upper: bool) -> IntegerRange:
    """Range of max(left, right), or of min(left, right)."""
    pick = max if upper else min
    lows, highs = (left.low, right.low), (left.high, right.high)
    sure, open_ = (lows, highs) if upper else (highs, lows)
    # A maximum is at least either lower bound that is known; its upper bound needs both (mirrored for minimum).
    known = [x for x in sure if x is not None]
    near = pick(known) if known else None
    far = None if None in open_ else pick(x for x in open_ if x is not None)
    return IntegerRange(near, far) if upper else IntegerRange(far, near)


def _union(left: IntegerRange, right: IntegerRange) -> IntegerRange:
    low = None if left.low is None or right.low is None else min(left.low, right.low)
    high = None if left.high is None or right.high is None else max(left.high, right.high)
    return IntegerRange(low, high)
