"""Masks that hide nothing: fill values of gathers which only guard dead rows, wraps of indices that are never negative.

A gather with `mode="fill"` puts a fill value where an index is out of range, by a select over all rows that it
returns. Where the rows that anybody reads have indices in range, as proved from how they were made (sorted
numbers, divisions, row < limit), the select hides nothing but dead rows, and the gather may clip.

jax lets every index count from the end: `select(index < 0, index + size, index)`. Where the ranges show that none is
below zero, the select returns its index, which the compiler cannot know; it would keep both for as long as a
gradient needs them.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.lax import GatherScatterMode

from hloscope.rewrite import jaxprs
from hloscope.rewrite.cones import is_matrix
from hloscope.rewrite.demand import Below
from hloscope.rewrite.demand_walk import Demands
from hloscope.rewrite.ranges import Ranges, RangesBelow


def guards_dead_rows_only(equation: Any, demands: Demands) -> bool:
    """Whether an equation is a gather of rows whose fill value no row that is read can hold."""
    if equation.primitive.name != "gather" or equation.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return False
    rows, demand = equation.outvars[0], demands.of.get(equation.outvars[0])
    if not isinstance(demand, Below) or not is_matrix(rows) or not _takes_rows(equation):
        return False
    size, count = equation.invars[0].aval.shape[0], rows.aval.shape[0]
    index = demands.facts.value(equation.invars[1])
    ranges = (RangesBelow(demands.limits, limit, count).range(index) for limit, _ in demand.limits)
    return all(found is not None and found[0] >= 0 and found[1] < size for found in ranges)


def settled(equation: Any, demands: Demands, ranges: Ranges) -> Any | None:
    """The operand that a select of integers returns in every row, None where it depends or is unknown."""
    if equation.primitive.name != "select_n" or len(equation.invars) != 3:
        return None
    kind = equation.outvars[0].aval
    if not kind.shape or not jnp.issubdtype(kind.dtype, jnp.integer):
        return None
    verdict = ranges.verdict(demands.facts.value(equation.invars[0]))
    chosen = None if verdict is None else equation.invars[2 if verdict else 1]
    return None if chosen is None or jaxprs.is_literal(chosen) else chosen


def returning(equation: Any, operand: Any) -> Any:
    """An equation that returns an operand in the place of another's result; it lowers to nothing."""
    (copied,) = jaxprs.traced_like(equation, _copy, [operand], equation.outvars)
    return copied


def _copy(value: Any) -> list[Any]:
    return [jnp.copy(value)]


def _takes_rows(equation: Any) -> bool:
    """Whether row i of the result is the row of the operand that index i names."""
    numbers, shape = equation.params["dimension_numbers"], equation.invars[1].aval.shape
    whole = tuple(equation.params["slice_sizes"]) == (1, *equation.invars[0].aval.shape[1:])
    named = tuple(numbers.start_index_map) == (0,) == tuple(numbers.collapsed_slice_dims)
    return whole and named and tuple(numbers.offset_dims) == (1,) and len(shape) == 2 and shape[1] == 1


def without_mask(gather: Any) -> Any:
    """The gather with clipped indices."""
    params = gather.params | {"mode": GatherScatterMode.CLIP, "fill_value": None}
    return gather.replace(params=params)
