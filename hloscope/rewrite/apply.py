"""`hs.apply`: a plan put into a step, in a user's trainer as in hloscope's own worker."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any, overload

from hloscope.capture.step import Step, step_spec
from hloscope.errors import UserError
from hloscope.plan import BeforeLoop, LogicalRules, LoopUpdate, MoveAxis, Plan, ValidRows
from hloscope.rewrite.early import do_early
from hloscope.rewrite.rows import rewrite_rows
from hloscope.rewrite.shardings import move_axis
from hloscope.rewrite.sizes import at_this_size
from hloscope.rewrite.update_loops import update_in_loop

Builder = Callable[..., Step]


@overload
def apply(step: Step, plan: Plan | str | os.PathLike[str], *, any_size: bool = ...) -> Step: ...
@overload
def apply(step: Builder, plan: Plan | str | os.PathLike[str], *, any_size: bool = ...) -> Builder: ...
def apply(
    step: Step | Builder, plan: Plan | str | os.PathLike[str], *, any_size: bool = False
) -> Step | Builder:
    """The step with a plan, or a plan's file, applied: what `hloscope apply-rules` compiled and measured.

    `step` is an `hs.Step`, or a builder marked with `@hs.step`, which stays a builder. A plan that changes
    logical rules needs the builder, since a step has no rules any more. Signature, donation and shardings stay,
    those excepted that the plan moves: `args` of the result tell where its arguments lie, and `jit()` makes it a
    function to call.

    A plan is for the shapes that it was measured with. With `any_size` it is applied to the same code at other sizes
    too, of which nothing was measured.

    Raises UserError, naming the action, where the plan does not fit the step. A plan without actions is told as a
    warning: nothing is changed.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import hloscope as hs
        >>> from hloscope.plan import MoveAxis
        >>> mesh = hs.Topology("cpu:1").mesh(fsdp=1)
        >>> rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
        >>> weights = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=rows)
        >>> step = hs.Step(lambda w: w * 2, args=(weights,))
        >>> move = MoveAxis(parameter="w", shape=(64, 128), axes=("fsdp",), source=0, target=1)
        >>> hs.apply(step, hs.Plan(actions=(move,))).args[0].sharding.spec
        P(None, 'fsdp')
    """
    loaded = plan if isinstance(plan, Plan) else Plan.load(plan)
    if not loaded.actions:
        what = "the plan" if isinstance(plan, Plan) else os.fspath(plan)
        warnings.warn(f"{what} has no actions: the step stays as it is", stacklevel=2)
    if not isinstance(step, Step):
        return _changed_builder(step, loaded, any_size)
    for action in loaded.actions:
        if isinstance(action, LogicalRules):
            raise UserError(f"{action.title}: apply the plan to the builder, hs.apply(builder, plan)")
    return _fitted(step, loaded, any_size)


def _fitted(step: Step, plan: Plan, any_size: bool) -> Step:
    return change(step, at_this_size(step, plan) if any_size else plan)


def _changed_builder(builder: Builder, plan: Plan, any_size: bool) -> Builder:
    spec = step_spec(builder)
    if spec is None:
        raise UserError("hs.apply takes an hs.Step or a function marked with @hs.step")
    rules = spec.rules

    @functools.wraps(builder)
    def changed(topology: Any, *given: Any) -> Step:
        own = given[0] if given else rules
        planned = plan.rules(own or {})
        built = builder(topology) if own is None else builder(topology, planned)
        return _fitted(built, plan, any_size)

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
