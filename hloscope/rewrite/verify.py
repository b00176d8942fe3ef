"""Running a step and its rewritten form on the host and comparing all that they return.

Both are compiled so that the host computes operation by operation: what is the same arithmetic gives the same
bits. Rows that kernels leave unwritten hold NaN: one that is taken for dead and is read shows.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.plan import BeforeLoop, Plan, ValidRows, from_fields
from hloscope.rewrite.inputs import on_host, placed, sample
from hloscope.rewrite.leaves import argument_numbers, tree, tree_leaves
from hloscope.rewrite.rows import BITWISE_OPTIONS, kernels_as
from hloscope.rewrite.sizes import at_this_size

if TYPE_CHECKING:
    from hloscope.capture.worker import Built

# How far a leaf may be off, in units of its type's rounding at its largest magnitude. In float32 dropping rows
# that nobody reads changes no value. Narrower types are rounded once by a kernel, not after each operation,
# and an interpreted kernel adds a row up in another order. Where shardings were moved, devices do: a rounding of
# narrow types is a hundredth of the value, of which sums over devices make few.
EXACT, ROUNDED, REORDERED, REORDERED_NARROW = 0.0, 2.0, 64.0, 4.0
_WIDE = ("float32", "float64")


def verify(built: Built, options: dict[str, Any]) -> dict[str, Any]:
    """Compare the step with its rewritten form: `options` has the fields of the `plan` and the `seed`."""
    plan = at_this_size(built.step, from_fields(options["plan"]))
    with kernels_as("interpret"):
        changed = built.step_for(built.topology, plan)
    told = compare(built.step, changed, seed=options["seed"], reordered=_moves_data(plan))
    return {"topology": built.topology.name, "seed": options["seed"]} | told


def _moves_data(plan: Plan) -> bool:
    return any(not isinstance(action, ValidRows | BeforeLoop) for action in plan.actions)


def compare(original: Step, changed: Step, *, seed: int, reordered: bool) -> dict[str, Any]:
    """Run both on the same values and compare every leaf of what they return; `ok` if all are close enough.

    Raises UserError where they return different trees, or where the original's own results are not finite.
    """
    args, kwargs = sample(original, seed)
    expected, _ = _run(original, args, kwargs)
    found, interpreted = _run(changed, args, kwargs)
    if tree.structure(expected) != tree.structure(found):
        raise UserError("the rewritten step returns another tree than the original")
    names = [leaf.name or "result" for leaf in tree_leaves(expected, "")]
    pairs = zip(names, tree.leaves(expected), tree.leaves(found), strict=True)
    given = [on_host(value) for value in tree.leaves((args, kwargs))]
    leaves = [
        compare_leaf(n, o, new, allowed=_allowed(o.dtype, reordered, interpreted), given=given)
        for n, o, new in pairs
    ]
    if any(leaf["not_finite"] for leaf in leaves):
        raise UserError(
            "results of the step itself are NaN or infinite on these values: give hs.Step(..., sample=...)"
        )
    return {"ok": all(leaf["ok"] for leaf in leaves), "interpreted": interpreted, "leaves": leaves}


def _allowed(dtype: Any, reordered: bool, interpreted: bool) -> float:
    """The roundings that a leaf of a type may be off."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return EXACT
    if reordered:
        return REORDERED if str(dtype) in _WIDE else REORDERED_NARROW
    return EXACT if str(dtype) in _WIDE and not interpreted else ROUNDED


def _run(step: Step, args: Any, kwargs: Any) -> tuple[Any, bool]:
    """What a step returns, and whether a kernel was interpreted for it."""
    mesh = lowering.find_mesh(lowering.given_shardings(step), "cpu")
    traced = lowering.trace(step, mesh)
    lowered = lowering.within(mesh, traced.lower)
    compiled = lowered.compile(compiler_options=dict(BITWISE_OPTIONS))
    static = argument_numbers(step.static_argnums)
    given = placed(args, tuple(step.args)), placed(kwargs, dict(step.kwargs))
    result = compiled(*(value for i, value in enumerate(given[0]) if i not in static), **given[1])
    return tree.map(on_host, result), "pallas_call[" in str(traced.jaxpr)


def compare_leaf(
    name: str, old: Any, new: Any, *, allowed: float, given: Sequence[Any] = ()
) -> dict[str, Any]:
    """How far two arrays are apart: whether in any bit, the largest difference, and that in roundings.

    A rounding is the type's epsilon times the largest finite magnitude of the original. Values that are not
    finite must be the same; so must every value where no rounding is allowed. Zeros may differ in their sign. A
    result that is a value of `given`, where the original's is not, is wrong however close: an update was left out.
    """
    alike = (old.dtype, old.shape) == (new.dtype, new.shape)
    same = alike and old.tobytes() == new.tobytes()
    floating = jnp.issubdtype(old.dtype, jnp.floating)
    apart, roundings = (0.0, 0.0) if same else _distance(old, new) if alike and floating else (np.inf, np.inf)
    return {
        "name": name,
        "dtype": str(old.dtype),
        "shape": list(old.shape),
        "ok": same or bool(floating and allowed >= roundings and not _untouched(new, given)),
        "bitwise": same,
        # JSON has no infinity: what cannot be measured is null.
        "difference": apart if np.isfinite(apart) else None,
        "roundings": roundings if np.isfinite(roundings) else None,
        "allowed_roundings": allowed,
        "not_finite": int(np.count_nonzero(~np.isfinite(np.asarray(old, np.float64)))) if floating else 0,
    }


def _untouched(new: Any, given: Sequence[Any]) -> bool:
    """Whether a result is an argument, bit by bit."""
    return any(
        (new.dtype, new.shape) == (value.dtype, value.shape) and new.tobytes() == value.tobytes()
        for value in given
    )


def _distance(old: Any, new: Any) -> tuple[float, float]:
    """The largest difference, and that in roundings; infinite where values that are not finite differ."""
    wide, other = np.asarray(old, np.float64), np.asarray(new, np.float64)
    finite = np.isfinite(wide)
    if (
        not np.array_equal(wide[~finite], other[~finite], equal_nan=True)
        or not np.isfinite(other[finite]).all()
    ):
        return np.inf, np.inf
    apart = float(np.abs(wide - other)[finite].max(initial=0.0))
    kind: Any = jnp.finfo(old.dtype)
    rounding = float(kind.eps) * float(np.abs(wide[finite]).max(initial=0.0))
    return apart, apart / rounding if rounding else np.inf if apart else 0.0
