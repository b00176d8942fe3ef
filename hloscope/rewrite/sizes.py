"""A plan for the same step at another size: the small one that runs on the host, for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.plan import Action, BeforeLoop, MoveAxis, Plan, ValidRows
from hloscope.rewrite.early import early_work
from hloscope.rewrite.leaves import argument_leaves
from hloscope.rewrite.rows import find_row_clusters


def at_this_size(step: Step, plan: Plan) -> Plan:
    """The plan for the same step at another size.

    The same parameters have other shapes there, and the keys of clusters, which hold shapes, are those of the
    clusters that the same line of code makes in the same phase.
    """
    shapes = {leaf.name: leaf.shape for leaf in argument_leaves(step)}

    def fit(action: Action) -> Action:
        if isinstance(action, MoveAxis) and action.parameter in shapes:
            return replace(action, shape=shapes[action.parameter])
        if isinstance(action, ValidRows):
            here = [cluster.key for cluster in find_row_clusters(step).replaceable]
            return replace(action, clusters=_same_places(action.clusters, here, "cluster"))
        if isinstance(action, BeforeLoop):
            here = [each.key for each in early_work(step)]
            return replace(action, work=_same_places(action.work, here, "work"))
        return action

    return replace(plan, actions=tuple(fit(action) for action in plan.actions))


def _same_places(keys: Sequence[str], here: Sequence[str], what: str) -> tuple[str, ...]:
    """The keys of this step that stand for the same places as these."""
    at: dict[tuple[str, ...], list[str]] = {}
    for key in here:
        at.setdefault(_place(key), []).append(key)
    for key in keys:
        if _place(key) not in at:
            raise UserError(f"the plan does not fit the step at this size: it has no {what} like {key}")
    return tuple(dict.fromkeys(k for key in keys for k in at[_place(key)]))


def _place(key: str) -> tuple[str, ...]:
    """A key without its shapes: phase, kernel and source line of a cluster, primitive and line of other work."""
    *place, _, source = key.split("/")
    return (*place, source)
