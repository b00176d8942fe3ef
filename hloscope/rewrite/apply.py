"""`hs.apply`: a plan put into a step, in a user's trainer as in hloscope's own worker."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, overload

from hloscope.capture.step import Step, step_spec
from hloscope.errors import UserError
from hloscope.plan import BeforeLoop, LogicalRules, LoopUpdate, MoveAxis, Plan, ValidRows
from hloscope.rewrite.early import do_early
from hloscope.rewrite.rows import rewrite_rows
from hloscope.rewrite.shardings import move_axis
from hloscope.rewrite.update_loops import update_in_loop

Builder = Callable[..., Step]


@overload
def apply(step: Step, plan: Plan | str | os.PathLike[str]) -> Step: ...
@overload
def apply(step: Builder, plan: Plan | str | os.PathLike[str]) -> Builder: ...
def apply(step: Step | Builder, plan: Plan | str | os.PathLike[str]) -> Step | Builder:
    """The step with a plan, or a plan's file, applied: what `hloscope apply-rules` compiled and measured.

    `step` is an `hs.Step`, or a builder marked with `@hs.step`, which stays a builder. A plan that changes
    logical rules needs the builder, since a step has no rules any more. Raises UserError, naming the action,
    where the plan does not fit the step.

    Examples:
        >>> import jax
        >>> import hloscope as hs
        >>> weights = jax.ShapeDtypeStruct((64, 1024, 4096), "bfloat16")
        >>> step = hs.Step(lambda w: w * 2, args=(weights,))
        >>> hs.apply(step, hs.Plan()).args == step.args  # a plan without actions changes nothing
        True
    """
    loaded = plan if isinstance(plan, Plan) else Plan.load(plan)
    if isinstance(step, Step):
        for action in loaded.actions:
            if isinstance(action, LogicalRules):
                raise UserError(f"{action.title}: apply the plan to the builder, hs.apply(builder, plan)")
        return change(step, loaded)
    return _changed_builder(step, loaded)


def _changed_builder(builder: Builder, plan: Plan) -> Builder:
    spec = step_spec(builder)
    if spec is None:
        raise UserError("hs.apply takes an hs.Step or a function marked with @hs.step")
    rules = spec.rules

    @functools.wraps(builder)
    def changed(topology: Any, *given: Any) -> Step:
        own = given[0] if given else rules
        return change(builder(topology) if own is None else builder(topology, plan.rules(own)), plan)

    return changed


def change(step: Step, plan: Plan) -> Step:
    """The step with a plan's actions, those on logical rules excepted, which its builder was called with."""
    for action in plan.actions:
        if isinstance(action, MoveAxis):
            step = move_axis(step, action)
        elif isinstance(action, BeforeLoop):
            step = do_early(step, action)
        elif isinstance(action, LoopUpdate):
            step = update_in_loop(step, action)
        elif isinstance(action, ValidRows):
            step = _with_kernels(step, action)
    return step


def _with_kernels(step: Step, action: ValidRows) -> Step:
    try:
        return rewrite_rows(step, action.clusters)
    except UserError as error:
        raise UserError(f"the plan no longer fits: {action.title}: {error}") from error
