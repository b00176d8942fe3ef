"""Weights that one body reads in both orders keep the order that they have.

A grouped matmul and its gradient towards the rows read the same weights, one of them transposed, and the compiler
lays them out for either, with a copy for the other. Once recompute and backward stand in one body it may choose the
gradient's: then both orders are alive while the widest rows are. In the given order the copy is made after that.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.experimental.layout import Layout, with_layout_constraint

from hloscope.rewrite import jaxprs
from hloscope.rewrite.order import operands
from hloscope_kernels.chip import tpu_chip

_MARKS = ("pvary", "pcast")


def in_given_order(equations: Sequence[Any]) -> list[Any]:
    """The equations of a body, weights that are read in both orders pinned to the one that they have.

    They are not sorted any more. On other platforms than TPU nothing is done.
    """
    found = list(equations)
    for weights in _read_in_both_orders(equations):
        reader = next(each for each in equations if weights in operands(each))
        with jaxprs.context_of(reader):
            if tpu_chip() is None:
                continue
        pinned = jaxprs.fresh(weights)
        found = [_reading(each, weights, pinned) for each in found]
        found += jaxprs.traced_like(reader, _pin, [weights], [pinned])
    return found


def _pin(weights: Any) -> list[Any]:
    return [with_layout_constraint(weights, Layout(major_to_minor=tuple(range(weights.ndim))))]


def _read_in_both_orders(equations: Sequence[Any]) -> list[Any]:
    makers = {var: each for each in equations for var in each.outvars}
    orders: dict[Any, set[int]] = {}
    for each in equations:
        if _name(each) == "ragged_dot_general" and not jaxprs.is_literal(each.invars[1]):
            contracted = each.params["ragged_dot_dimension_numbers"].dot_dimension_numbers[0][1]
            orders.setdefault(_origin(each.invars[1], makers), set()).update(contracted)
    return [weights for weights, read in orders.items() if {1, 2} <= read]


def _origin(var: Any, makers: dict[Any, Any]) -> Any:
    """The value before it was only marked as varying over more mesh axes."""
    while (maker := makers.get(var)) is not None and _name(maker) in _MARKS:
        (var,) = maker.invars
    return var


def _name(entry: Any) -> str | None:
    """The primitive's name; None of what stands for a kernel that is not traced yet."""
    primitive = getattr(entry, "primitive", None)
    return None if primitive is None else primitive.name


def _reading(equation: Any, old: Any, new: Any) -> Any:
    if old not in operands(equation):
        return equation
    return equation.replace(invars=[new if atom is old else atom for atom in equation.invars])
