"""Where rows end: equal limits written differently, masks that compare row numbers with one, ranges of indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloscope.rewrite.symbols import Expr, Symbols, literal_value, parameter

Range = tuple[int, int]
_SPREADS = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


class Limits:
    """Proofs about limits; `symbols` makes what they need."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._normal: dict[Expr, Expr] = {}

    def same(self, left: Expr, right: Expr, rows: int) -> bool:
        """Whether two limits of a buffer of `rows` rows are always equal."""
        return self.normal_limit(left, rows) is self.normal_limit(right, rows)

    def normal_limit(self, limit: Expr, rows: int) -> Expr:
        """One form for all ways to write a limit: sums of differences, minima with the number of rows."""
        normal = self.normal(limit)
        while normal.op == "min":
            left, right = normal.args
            value = literal_value(right)
            if value is None:
                left, value = right, literal_value(left)
            if value is None or value < rows:
                break
            normal = left
        return normal

    def normal(self, scalar: Expr) -> Expr:
        """A scalar with sums of differences summed up and single items taken out of what they are items of."""
        if scalar not in self._normal:
            self._normal[scalar] = self._normalize(scalar)
        return self._normal[scalar]

    def _normalize(self, scalar: Expr) -> Expr:
        if scalar.shape:
            return scalar
        if scalar.op == "reduce_sum" and len(scalar.args[0].shape) == 1:
            return self._sum(scalar.args[0])
        if scalar.op in ("squeeze", "reshape") and len(scalar.args[0].shape) == 1:
            return self.item(scalar.args[0], 0)
        if scalar.op in ("min", "max", "add", "sub"):
            left, right = map(self.normal, scalar.args)
            return self._binary(scalar.op, left, right)
        return scalar

    def _binary(self, op: str, left: Expr, right: Expr) -> Expr:
        if op in ("add", "sub") and literal_value(right) == 0:
            return left
        if op == "add" and literal_value(left) == 0:
            return right
        if op != "sub" and (left.op == "literal" or (right.op != "literal" and id(left) > id(right))):
            left, right = right, left
        return self.symbols.binary(op, left, right)

    def _sum(self, vector: Expr) -> Expr:
        """The sum of a vector; differences of neighbours leave the last less the first."""
        if vector.op == "sub":
            later, earlier = vector.args
            whole = _neighbours(later, earlier)
            if whole is not None:
                size = whole.shape[0]
                return self._binary("sub", self.item(whole, size - 1), self.item(whole, 0))
        return self.symbols.total(vector)

    def item(self, vector: Expr, index: int) -> Expr:
        """One item of a vector."""
        if vector.op in _SPREADS and not vector.args[0].shape:
            return self.normal(vector.args[0])
        if vector.op == "slice" and _unit_steps(vector):
            return self.item(vector.args[0], index + parameter(vector, "start_indices")[0])
        if vector.op == "concatenate":
            for part in vector.args:
                if index < part.shape[0]:
                    return self.item(part, index)
                index -= part.shape[0]
        if vector.op == "cumsum" and not parameter(vector, "reverse") and index == vector.shape[0] - 1:
            return self._sum(vector.args[0])
        if vector.op in ("min", "max", "add", "sub") and all(
            arg.shape in ((), vector.shape) for arg in vector.args
        ):
            left, right = (self.item(arg, index) if arg.shape else self.normal(arg) for arg in vector.args)
            return self._binary(vector.op, left, right)
        return self.symbols.make("item", (vector,), index, shape=(), dtype=vector.dtype)

    def below_where(self, mask: Expr, value: bool) -> list[Expr]:
        """Limits L with: where the mask has this value, the row is below L."""
        if mask.op == "not":
            return self.below_where(mask.args[0], not value)
        if mask.op == ("and" if value else "or"):
            return [limit for arg in mask.args for limit in self.below_where(arg, value)]
        if mask.op in _SPREADS and keeps_rows(mask):
            return self.below_where(mask.args[0], value)
        if mask.op not in _FLIPPED:
            return []
        left, right = mask.args
        for op, row, bound in ((mask.op, left, right), (_FLIPPED[mask.op], right, left)):
            limit = scalar_of(bound)
            if limit is not None and is_row_number(row) and op == ("lt" if value else "ge"):
                return [limit]
        return []

    def tail_range(self, expr: Expr, limit: Expr, rows: int) -> Range | None:
        """The range of an integer value in the rows from `limit` on; None where it may be anything."""
        return _Tail(self, limit, rows).range(expr)

    def mentioned(self, expr: Expr) -> list[Expr]:
        """Limits that an expression knows: row numbers are compared with them, or a vector is padded from there."""
        found: dict[Expr, None] = {}
        for inner in expr.walk():
            if inner.op == "pad" and (end := _padded_from(inner)) is not None:
                found[self.symbols.literal(end)] = None
            if inner.op in _FLIPPED:
                for value in (True, False):
                    found.update(dict.fromkeys(self.below_where(inner, value)))
        return list(found)


def scalar_of(expr: Expr) -> Expr | None:
    """The scalar that an array is filled with."""
    while expr.shape and expr.op in ("broadcast_in_dim", "reshape"):
        (expr,) = expr.args
    return None if expr.shape else expr


def is_row_number(expr: Expr) -> bool:
    """Whether each element is the number of its row (dimension 0)."""
    while expr.op in _SPREADS and keeps_rows(expr):
        (expr,) = expr.args
    return expr.op == "iota" and parameter(expr, "dimension") == 0


def keeps_rows(expr: Expr) -> bool:
    """Whether a spread or reshaped value has the rows of its operand as its own."""
    before, after = expr.args[0].shape, expr.shape
    if not before or not after or before[0] != after[0]:
        return False
    if expr.op == "broadcast_in_dim":
        return parameter(expr, "broadcast_dimensions")[0] == 0
    # The same first dimension in row-major order; dimensions of 1 in front would say nothing.
    return before[0] > 1


def _padded_from(pad: Expr) -> int | None:
    """The row from which on a vector is padding."""
    (low, _, interior), *others = parameter(pad, "padding_config")
    return None if others or low or interior else pad.args[0].shape[0]


def _neighbours(later: Expr, earlier: Expr) -> Expr | None:
    """The vector v of which these are v[1:] and v[:-1]."""
    if later.op != "slice" or earlier.op != "slice" or later.args != earlier.args:
        return None
    (whole,) = later.args
    if len(whole.shape) != 1 or not _unit_steps(later) or not _unit_steps(earlier):
        return None
    size = whole.shape[0]
    bounds = [
        (parameter(part, "start_indices")[0], parameter(part, "limit_indices")[0])
        for part in (later, earlier)
    ]
    return whole if bounds == [(1, size), (0, size - 1)] else None


def _unit_steps(expr: Expr) -> bool:
    return all(step == 1 for step in parameter(expr, "strides") or ())


class _Tail:
    """Ranges of values in the rows from a limit on."""

    def __init__(self, limits: Limits, limit: Expr, rows: int) -> None:
        self.limits, self.limit, self.rows = limits, limit, rows
        self._found: dict[Expr, Range | None] = {}

    def range(self, expr: Expr) -> Range | None:
        if expr not in self._found:
            self._found[expr] = self._fits(expr, self._range(expr))
        return self._found[expr]

    def _fits(self, expr: Expr, found: Range | None) -> Range | None:
        """None where the value may have wrapped around."""
        if found is None or expr.dtype == "bool":
            return found
        bounds = np.iinfo(expr.dtype)
        return found if bounds.min <= found[0] and found[1] <= bounds.max else None

    def _range(self, expr: Expr) -> Range | None:
        value = literal_value(expr if expr.shape else self.limits.normal(expr))
        if value is not None:
            return value, value
        if expr.op == "iota":
            dimension: int = parameter(expr, "dimension")
            return 0, expr.shape[dimension] - 1
        if expr.op == "select_n":
            return self._select(expr)
        if expr.op == "pad":
            end, limit = _padded_from(expr), literal_value(self.limits.normal_limit(self.limit, self.rows))
            behind = end is not None and limit is not None and limit >= end
            return self.range(expr.args[1]) if behind else None
        if expr.op in _SPREADS or expr.op in ("slice", "convert_element_type"):
            return self.range(expr.args[0]) if self._same_rows(expr) else None
        rule = _ARITHMETIC.get(expr.op)
        if rule is None:
            return None
        left, right = (self.range(arg) for arg in expr.args)
        return None if left is None or right is None else rule(left, right)

    def _same_rows(self, expr: Expr) -> bool:
        """A range that holds in the tail says nothing of rows that were moved there from elsewhere."""
        before, after = expr.args[0].shape, expr.shape
        if expr.op == "slice":
            return before[:1] == after[:1]
        return not before or expr.op == "convert_element_type" or keeps_rows(expr)

    def _select(self, expr: Expr) -> Range | None:
        if len(expr.args) != 3:
            return None
        mask, when_false, when_true = expr.args
        verdict = self._verdict(mask)
        if verdict is not None:
            return self.range(when_true if verdict else when_false)
        ranges = [self.range(when_false), self.range(when_true)]
        if ranges[0] is None or ranges[1] is None:
            return None
        return min(ranges[0][0], ranges[1][0]), max(ranges[0][1], ranges[1][1])

    def _verdict(self, mask: Expr) -> bool | None:
        """What a mask says in the tail, where it says the same in all of it."""
        for value in (True, False):
            below = self.limits.below_where(mask, value)
            if any(self.limits.same(limit, self.limit, self.rows) for limit in below):
                return not value
        if mask.op not in _FLIPPED:
            return None
        left, right = (self.range(arg) for arg in mask.args)
        return None if left is None or right is None else _compare(mask.op, left, right)


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
