"""Which rows an equation reads of each operand, given which rows of its results are demanded: one rule a primitive.

Rows are dimension 0. A rule may only say less than "all rows" where the rest cannot reach the demanded rows
whatever it holds, NaN and infinities included: a product with zero does not hide a row, a select does.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.demand import NOTHING, Below, Demand, Nothing, Reason, all_of, because, below, join
from hloscope.rewrite.facts import Facts
from hloscope.rewrite.limits import Limits
from hloscope.rewrite.marks import MARK, registered
from hloscope.rewrite.ranges import RangesBehind
from hloscope.rewrite.symbols import sums_exactly
from hloscope_kernels.valid_rows.roles import ELEMENTWISE

ROWWISE = ELEMENTWISE | {
    "atan2",
    "cbrt",
    "erf_inv",
    "expm1",
    "imag",
    "is_finite",
    "name",
    "nextafter",
    "pcast",
    "population_count",
    "pvary",
    "real",
    "reduce_precision",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "tan",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One equation, the demands on its results, and what is known of values."""

    equation: Any
    results: Sequence[Demand]
    facts: Facts
    limits: Limits

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return self.equation.params

    @property
    def where(self) -> str | None:
        """`file:line`."""
        return jaxprs.source_line(self.equation)

    def shape(self, operand: int) -> tuple[int, ...]:
        """The shape of an operand."""
        return tuple(self.equation.invars[operand].aval.shape)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return tuple(self.equation.outvars[0].aval.shape)

    def whole(self, why: str) -> Demand:
        """All rows, and why."""
        return all_of(f"{self.name} {why}", self.where)

    def passed(self, demand: Demand) -> Demand:
        """The demand on a result, passed on to an operand with the same rows."""
        return because(demand, f"{self.name} keeps rows apart", self.where)

    def same_rows(self, operand: int) -> Demand:
        """The demand on the first result, where the operand has its rows; all of what has others (one, or none)."""
        shape = self.shape(operand)
        if shape and self.result_shape and shape[0] == self.result_shape[0]:
            return self.passed(self.results[0])
        return self.whole("reads it for every row")


Rule = Callable[[Reading], list[Demand]]


def read_rows(reading: Reading) -> list[Demand]:
    """The demand on each operand."""
    equation = reading.equation
    count = len(equation.invars)
    effects = jaxprs.has_side_effects(equation)
    if all(isinstance(result, Nothing) for result in reading.results) and not effects:
        return [NOTHING] * count
    if effects:
        return [reading.whole("has side effects")] * count
    own = registered().get(jaxprs.call_name(equation))
    if own is not None:
        return _registered(reading, own)
    rule = RULES.get(reading.name)
    if rule is None:
        return [reading.whole("is not understood: it counts as reading every row")] * count
    return rule(reading)


def _registered(reading: Reading, own: Any) -> list[Demand]:
    demands: list[Demand] = []
    for position in range(len(reading.equation.invars)):
        if position in own.below_sum:
            demands.append(_below_sum(reading, own.below_sum[position]))
        elif position in own.below:
            demands.append(_below(reading, own.below[position], "as registered"))
        else:
            demands.append(reading.whole("reads it whole, as registered"))
    return demands


def _below_sum(reading: Reading, sizes: int) -> Demand:
    if sizes >= len(reading.equation.invars) or len(reading.shape(sizes)) != 1:
        return reading.whole("has no vector of group sizes there")
    vector = reading.facts.value(reading.equation.invars[sizes])
    if not sums_exactly(vector.dtype):
        return reading.whole(f"has group sizes of {vector.dtype}, whose sums may wrap around")
    total = reading.facts.symbols.total(vector)
    what = f"{jaxprs.call_name(reading.equation)} reads rows below the sum of its group sizes"
    return below(total, Reason(what=what, where=reading.where))


def _below(reading: Reading, limit: int, why: str) -> Demand:
    if limit >= len(reading.equation.invars) or reading.shape(limit) != ():
        return reading.whole("has no scalar limit there")
    end = reading.facts.value(reading.equation.invars[limit])
    return below(
        end,
        Reason(
            what=f"{jaxprs.call_name(reading.equation)} reads rows below its limit, {why}",
            where=reading.where,
        ),
    )


def _rowwise(reading: Reading) -> list[Demand]:
    return [reading.same_rows(position) for position in range(len(reading.equation.invars))]


def _barrier(reading: Reading) -> list[Demand]:
    return [reading.passed(demand) for demand in reading.results]


def _mark(reading: Reading) -> list[Demand]:
    return [_below(reading, 1, "as its user promises"), reading.whole("needs its limit")]


def _select(reading: Reading) -> list[Demand]:
    mask = reading.facts.value(reading.equation.invars[0])
    demands = [reading.same_rows(position) for position in range(len(reading.equation.invars))]
    if len(demands) != 3 or mask.dtype != "bool" or len(reading.shape(0)) != len(reading.result_shape):
        return demands
    for position, value in ((1, False), (2, True)):
        if isinstance(demands[position], Below) or not reading.shape(position):
            continue
        found = reading.limits.below_where(mask, value)
        if found:
            reason = Reason(what="a select takes it only in rows below a limit", where=reading.where)
            demands[position] = below(found[0], reason)
    return demands


def _broadcast(reading: Reading) -> list[Demand]:
    axes = tuple(reading.params["broadcast_dimensions"])
    others = [reading.whole("reads it")] * (len(reading.equation.invars) - 1)
    return [reading.same_rows(0) if axes and axes[0] == 0 else reading.whole("spreads it over rows"), *others]


def _reshape(reading: Reading) -> list[Demand]:
    return [reading.same_rows(0)] + [reading.whole("reads it")] * (len(reading.equation.invars) - 1)


def _squeeze(reading: Reading) -> list[Demand]:
    kept = 0 not in [axis % len(reading.shape(0)) for axis in reading.params["dimensions"]]
    return [reading.same_rows(0) if kept else reading.whole("takes one row")]


def _slice(reading: Reading) -> list[Demand]:
    start, stop = reading.params["start_indices"][0], reading.params["limit_indices"][0]
    if (start, stop) == (0, reading.shape(0)[0]) and (reading.params["strides"] or (1,))[0] == 1:
        return [reading.same_rows(0)]
    if stop == reading.shape(0)[0]:
        return [reading.whole("reads the last rows")]
    reason = Reason(what=f"a slice ends at row {stop}", where=reading.where)
    return [below(reading.facts.symbols.literal(int(stop)), reason)]


def _split(reading: Reading) -> list[Demand]:
    if reading.params["axis"] == 0:
        return [reading.whole("splits rows")]
    return [join(reading.passed(demand) for demand in reading.results)]


def _concatenate(reading: Reading) -> list[Demand]:
    if reading.params["dimension"] == 0:
        return [reading.whole("moves rows")] * len(reading.equation.invars)
    return _rowwise(reading)


def _pad(reading: Reading) -> list[Demand]:
    kept = tuple(reading.params["padding_config"][0]) == (0, 0, 0)
    return [reading.same_rows(0) if kept else reading.whole("moves rows"), reading.whole("pads with it")]


def _along(*names: str) -> Rule:
    """Work along dimensions other than rows, named by these parameters; the last one where it is not named."""

    def rule(reading: Reading) -> list[Demand]:
        axes: list[int] = []
        for name in names:
            value = reading.params.get(name, -1)
            axes += value if isinstance(value, (tuple, list)) else [value]
        if 0 in [axis % len(reading.shape(0)) for axis in axes]:
            return [reading.whole("works across rows")] * len(reading.equation.invars)
        joined = join(reading.results)
        return [reading.passed(joined)] * len(reading.equation.invars)

    return rule


def _transpose(reading: Reading) -> list[Demand]:
    kept = reading.params["permutation"][0] == 0
    return [reading.same_rows(0) if kept else reading.whole("moves rows to another dimension")]


def _dot_general(reading: Reading) -> list[Demand]:
    (left, _), (left_batch, right_batch) = reading.params["dimension_numbers"]
    if tuple(left_batch[:1]) == (0,) and tuple(right_batch[:1]) == (0,):
        return [reading.same_rows(0), reading.same_rows(1)]
    sides = [reading.whole("contracts over rows, or reads it for every row")] * 2
    if not left_batch and 0 not in left:
        sides[0] = reading.same_rows(0)
    return sides


def _ragged_dot(reading: Reading) -> list[Demand]:
    """Rows behind the sum of the group sizes are in no group.

    The product gives zeros there, whatever the left side holds; the contraction leaves them out on both sides.
    """
    numbers = reading.params["ragged_dot_dimension_numbers"]
    (left, right), (left_batch, right_batch) = numbers.dot_dimension_numbers
    whole = [reading.whole("reads it whole")] * len(reading.equation.invars)
    plain = tuple(numbers.lhs_ragged_dimensions) == (0,) and not left_batch and not right_batch
    if not plain or reading.params.get("group_offset") is not None or len(reading.shape(2)) != 1:
        return whole
    if 0 not in left:
        return [_below_sum(reading, 2), *whole[1:]]
    if right[left.index(0)] != 0:
        return whole
    return [_below_sum(reading, 2), _below_sum(reading, 2), *whole[2:]]


def _gather(reading: Reading) -> list[Demand]:
    return [reading.whole("may read any row"), reading.whole("reads every index")]


def _scatter(reading: Reading) -> list[Demand]:
    equation = reading.equation
    return [reading.same_rows(0), reading.whole("reads every index"), _updates(reading)] + [
        reading.whole("reads it")
    ] * (len(equation.invars) - 3)


def _updates(reading: Reading) -> Demand:
    """Updates are dropped where their index is out of range."""
    numbers, shape = reading.params["dimension_numbers"], reading.shape(2)
    rows = reading.shape(1)[:1]
    scattered = [axis for axis in range(len(shape)) if axis not in numbers.update_window_dims]
    if getattr(reading.params["mode"], "name", "") != "FILL_OR_DROP":
        return reading.whole("adds every row somewhere: only mode='drop' leaves rows out")
    simple = scattered == [0] and shape[:1] == rows and reading.shape(1) == (*rows, 1)
    if not simple or tuple(numbers.scatter_dims_to_operand_dims) != tuple(numbers.inserted_window_dims):
        return reading.whole("has indices of a form that is not understood")
    size = reading.shape(0)[numbers.scatter_dims_to_operand_dims[0]]
    index = reading.facts.value(reading.equation.invars[1])
    for limit in reading.limits.mentioned(index):
        found = RangesBehind(reading.limits, limit, shape[0]).range(index)
        if found is not None and (found[0] >= size or found[1] < 0):
            what = f"scatter drops rows behind a limit: their index is {found[0]} or more, out of {size}"
            return below(limit, Reason(what=what, where=reading.where))
    return reading.whole(
        "drops out-of-range indices, but no limit is known behind which all of them are: its index would have "
        "to be a select on row < limit with a value out of range"
    )


def _update_slice(reading: Reading) -> list[Demand]:
    whole = [reading.whole("reads it")] * (len(reading.equation.invars) - 1)
    return [reading.same_rows(0), *whole]


RULES: dict[str, Rule] = {
    **dict.fromkeys(ROWWISE, _rowwise),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _along("axes")
    ),
    **dict.fromkeys(("argmax", "argmin"), _along("axes")),
    **dict.fromkeys(("cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp"), _along("axis")),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul"), _scatter),
    **dict.fromkeys(("squeeze", "reduce_squeeze"), _squeeze),
    MARK: _mark,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "dot_general": _dot_general,
    "dynamic_update_slice": _update_slice,
    "expand_dims": _reshape,
    "gather": _gather,
    "iota": lambda reading: [],
    "optimization_barrier": _barrier,
    "pad": _pad,
    "ragged_dot_general": _ragged_dot,
    "reshape": _reshape,
    "rev": _along("dimensions"),
    "select_n": _select,
    "slice": _slice,
    "sort": _along("dimension"),
    "split": _split,
    "top_k": _along("axis"),
    "transpose": _transpose,
}
