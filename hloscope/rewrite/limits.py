"""Where rows end: equal limits written differently, and masks that compare row numbers with one."""

from __future__ import annotations

from hloscope.rewrite.symbols import Expr, Symbols, counts_to, literal_value, parameter, sums_exactly

SPREADS = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


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
        if scalar.op == "reduce_sum" and len(scalar.args[0].shape) == 1 and sums_exactly(scalar.dtype):
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
        if vector.op in SPREADS and not vector.args[0].shape:
            return self.normal(vector.args[0])
        if vector.op == "slice" and unit_steps(vector):
            return self.item(vector.args[0], index + parameter(vector, "start_indices")[0])
        if vector.op == "concatenate":
            for part in vector.args:
                if index < part.shape[0]:
                    return self.item(part, index)
                index -= part.shape[0]
        last = index == vector.shape[0] - 1
        if vector.op == "cumsum" and last and not parameter(vector, "reverse") and sums_exactly(vector.dtype):
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
        if mask.op in SPREADS and keeps_rows(mask):
            return self.below_where(mask.args[0], value)
        if mask.op not in FLIPPED:
            return []
        left, right = mask.args
        for op, row, bound in ((mask.op, left, right), (FLIPPED[mask.op], right, left)):
            limit = scalar_of(bound)
            if limit is not None and is_row_number(row) and op == ("lt" if value else "ge"):
                return [limit]
        return []

    def mentioned(self, expr: Expr) -> list[Expr]:
        """Limits that an expression knows: row numbers are compared with them, or a vector is padded from there."""
        found: dict[Expr, None] = {}
        for inner in expr.walk():
            if inner.op == "pad" and (end := padded_from(inner)) is not None:
                found[self.symbols.literal(end)] = None
            if inner.op in FLIPPED:
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
    while expr.op in SPREADS and keeps_rows(expr):
        (expr,) = expr.args
    rows = expr.shape[0] if expr.shape else 0
    return expr.op == "iota" and parameter(expr, "dimension") == 0 and counts_to(expr.dtype, rows - 1)


def keeps_rows(expr: Expr) -> bool:
    """Whether a spread or reshaped value has the rows of its operand as its own."""
    before, after = expr.args[0].shape, expr.shape
    if not before or not after or before[0] != after[0]:
        return False
    if expr.op == "broadcast_in_dim":
        return parameter(expr, "broadcast_dimensions")[0] == 0
    # The same first dimension in row-major order; dimensions of 1 in front would say nothing.
    return before[0] > 1


def padded_from(pad: Expr) -> int | None:
    """The row from which on a vector is padding."""
    (low, _, interior), *others = parameter(pad, "padding_config")
    return None if others or low or interior else pad.args[0].shape[0]


def _neighbours(later: Expr, earlier: Expr) -> Expr | None:
    """The vector v of which these are v[1:] and v[:-1]."""
    if later.op != "slice" or earlier.op != "slice" or later.args != earlier.args:
        return None
    (whole,) = later.args
    if len(whole.shape) != 1 or not unit_steps(later) or not unit_steps(earlier):
        return None
    size = whole.shape[0]
    bounds = [
        (parameter(part, "start_indices")[0], parameter(part, "limit_indices")[0])
        for part in (later, earlier)
    ]
    return whole if bounds == [(1, size), (0, size - 1)] else None


def unit_steps(expr: Expr) -> bool:
    """Whether a slice leaves nothing out between its ends."""
    return all(step == 1 for step in parameter(expr, "strides") or ())
