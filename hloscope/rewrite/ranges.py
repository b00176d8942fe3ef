"""Ranges of integer values: in the rows behind a limit, in those below it, or anywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloscope.rewrite.limits import (
    FLIPPED,
    SPREADS,
    Limits,
    is_row_number,
    keeps_rows,
    padded_from,
    scalar_of,
    unit_steps,
)
from hloscope.rewrite.symbols import Expr, inside_out, literal_value, parameter

Range = tuple[int, int]


class Ranges:
    """Ranges that hold in every row. None where a value may be anything."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._found: dict[Expr, Range | None] = {}

    def range(self, expr: Expr) -> Range | None:
        """The least and the largest value."""
        for each in inside_out(expr, self._found):
            self._found[each] = _fits(each, self._range(each))
        return self._found[expr]

    def _range(self, expr: Expr) -> Range | None:
        value = literal_value(expr if expr.shape else self.limits.normal(expr))
        if value is not None:
            return value, value
        source = self.limits.symbols.source_of(expr)
        if source is not None:
            # Rows were moved: what holds of some of them before says nothing.
            return Ranges(self.limits).range(source)
        if expr.op == "iota":
            dimension: int = parameter(expr, "dimension")
            return 0, expr.shape[dimension] - 1
        if expr.op == "select_n":
            return self._select(expr)
        if expr.op == "pad":
            return self._pad(expr)
        if expr.op in SPREADS or expr.op in ("slice", "convert_element_type"):
            return self.range(expr.args[0]) if self._same_rows(expr) else None
        rule = _ARITHMETIC.get(expr.op)
        if rule is None:
            return None
        left, right = (self.range(arg) for arg in expr.args)
        return None if left is None or right is None else rule(left, right)

    def _same_rows(self, expr: Expr) -> bool:
        """Whether what holds of the rows of an operand holds of the result's; here rows are all alike."""
        return True

    def _pad(self, expr: Expr) -> Range | None:
        return _union(self.range(expr.args[0]), self.range(expr.args[1]))

    def _select(self, expr: Expr) -> Range | None:
        if len(expr.args) != 3:
            return None
        mask, when_false, when_true = expr.args
        verdict = self.verdict(mask)
        if verdict is not None:
            return self.range(when_true if verdict else when_false)
        if self._is_floor(mask, when_false, when_true):
            return self.range(when_false)
        return _union(self.range(when_false), self.range(when_true))

    def verdict(self, mask: Expr) -> bool | None:
        """What a mask says, where it says the same in all rows."""
        if mask.op not in FLIPPED:
            return None
        left, right = (self.range(arg) for arg in mask.args)
        return None if left is None or right is None else _compare(mask.op, left, right)

    def _is_floor(self, mask: Expr, quotient: Expr, less_one: Expr) -> bool:
        """Whether this is jax's `//` of what is not below zero: the quotient then needs no correction."""
        if quotient.op != "div" or less_one.op != "sub" or less_one.args[0] is not quotient:
            return False
        number, by = quotient.args
        left, right = self.range(number), self.range(by)
        if left is None or right is None or left[0] < 0 or right[0] <= 0 or mask.op != "and":
            return False
        signs, rest = mask.args
        return self._compares(signs, "sign", (number,), (by,)) and self._compares(
            rest, "rem", (number, by), None
        )

    def _compares(self, mask: Expr, op: str, left: tuple[Expr, ...], right: tuple[Expr, ...] | None) -> bool:
        """Whether a mask says that `op` of these is not `op` of those, or, of None, that it is not zero."""
        if mask.op != "ne":
            return False
        one, other = mask.args
        if one.op != op or not self._all_alike(one.args, left):
            return False
        return self._number(other) == 0 if right is None else self._is_of(other, op, right)

    def _is_of(self, expr: Expr, op: str, args: tuple[Expr, ...]) -> bool:
        inner = self._filling(expr)
        return inner.op == op and self._all_alike(inner.args, args)

    def _all_alike(self, left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
        """The same values, a scalar being the same as an array that is filled with it."""
        pairs = zip(left, right, strict=True)
        return all(a is b or self._number(a) == self._number(b) is not None for a, b in pairs)

    def _number(self, expr: Expr) -> int | None:
        return literal_value(self._filling(expr))

    def _filling(self, expr: Expr) -> Expr:
        """The scalar that an array is filled with, else the array."""
        scalar = scalar_of(expr) or expr
        return scalar if scalar.shape else self.limits.normal(scalar)


class RangesBehind(Ranges):
    """Ranges that hold in the rows from a limit on, of a buffer of `rows` rows."""

    def __init__(self, limits: Limits, limit: Expr, rows: int) -> None:
        super().__init__(limits)
        self.limit, self.rows = limit, rows

    def _pad(self, expr: Expr) -> Range | None:
        end, limit = padded_from(expr), literal_value(self.limits.normal_limit(self.limit, self.rows))
        behind = end is not None and limit is not None and limit >= end
        return self.range(expr.args[1]) if behind else None

    def _same_rows(self, expr: Expr) -> bool:
        """A range that holds in the tail says nothing of rows that were moved there from elsewhere."""
        before, after = expr.args[0].shape, expr.shape
        if expr.op == "slice":
            return before[:1] == after[:1]
        return not before or expr.op == "convert_element_type" or keeps_rows(expr)

    def verdict(self, mask: Expr) -> bool | None:
        """What a mask says in the rows from the limit on."""
        for value in (True, False):
            below = self.limits.below_where(mask, value)
            if any(self.limits.same(limit, self.limit, self.rows) for limit in below):
                return not value
        return super().verdict(mask)


class RangesBelow(RangesBehind):
    """Ranges that hold in the rows below a limit."""

    def _pad(self, expr: Expr) -> Range | None:
        # Padding in front would move rows.
        return None if padded_from(expr) is None else Ranges._pad(self, expr)

    def _same_rows(self, expr: Expr) -> bool:
        if expr.op == "slice":
            return unit_steps(expr) and parameter(expr, "start_indices")[0] == 0
        return super()._same_rows(expr)

    def verdict(self, mask: Expr) -> bool | None:
        """What a mask says in the rows below the limit."""
        if mask.op in SPREADS and keeps_rows(mask):
            return self.verdict(mask.args[0])
        if mask.op in FLIPPED:
            left, right = mask.args
            for op, row, bound in ((mask.op, left, right), (FLIPPED[mask.op], right, left)):
                limit = scalar_of(bound)
                if limit is None or not is_row_number(row) or op not in ("lt", "ge"):
                    continue
                if self.limits.same(limit, self.limit, self.rows):
                    return op == "lt"
        return Ranges.verdict(self, mask)


def _fits(expr: Expr, found: Range | None) -> Range | None:
    """None where the value may have wrapped around, or where a number became a truth value."""
    if found is None:
        return None
    if expr.dtype == "bool":
        least, most = 0, 1
    else:
        bounds = np.iinfo(expr.dtype)
        least, most = bounds.min, bounds.max
    return found if least <= found[0] and found[1] <= most else None


def _union(left: Range | None, right: Range | None) -> Range | None:
    if left is None or right is None:
        return None
    return min(left[0], right[0]), max(left[1], right[1])


def _compare(op: str, left: Range, right: Range) -> bool | None:
    if op in ("gt", "le"):
        left, right = right, left
    if op in ("lt", "gt"):
        return True if left[1] < right[0] else False if left[0] >= right[1] else None
    return True if left[0] >= right[1] else False if left[1] < right[0] else None


def _quotient(left: Range, right: Range) -> Range | None:
    return (left[0] // right[1], left[1] // right[0]) if left[0] >= 0 and right[0] > 0 else None


def _product(left: Range, right: Range) -> Range:
    corners = [a * b for a in left for b in right]
    return min(corners), max(corners)


def _sum(left: Range, right: Range) -> Range:
    return left[0] + right[0], left[1] + right[1]


def _difference(left: Range, right: Range) -> Range:
    return left[0] - right[1], left[1] - right[0]


def _smaller(left: Range, right: Range) -> Range:
    return min(left[0], right[0]), min(left[1], right[1])


def _larger(left: Range, right: Range) -> Range:
    return max(left[0], right[0]), max(left[1], right[1])


_ARITHMETIC: dict[str, Callable[[Range, Range], Range | None]] = {
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "min": _smaller,
    "max": _larger,
}
