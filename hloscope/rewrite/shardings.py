"""Moving the sharded axis of a parameter to another of its dimensions, wherever the step says where it lies.

That is: the shardings of the arguments (the parameter and its twins in an optimizer's trees), of the results
that take their places, `in_shardings` and `out_shardings`, and sharding constraints inside the step. A
sharding never changes what is computed, but sums over devices may be added in another order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

from jax.sharding import NamedSharding, PartitionSpec

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.plan import MoveAxis
from hloscope.rewrite.constraints import Constraint, move_constraints
from hloscope.rewrite.leaves import (
    Leaf,
    argument_leaves,
    argument_numbers,
    arguments,
    common_suffix,
    dimension_axes,
    tree,
    tree_leaves,
    twins,
)


def move_axis(step: Step, action: MoveAxis) -> Step:
    """The step with the parameter sharded as the action says. Raises UserError if it does not fit the step."""
    if step.is_jitted:
        raise _refusal(
            action,
            "the step is a jax.jit function, whose shardings are its own: give hs.Step the plain function",
        )
    leaves = argument_leaves(step)
    leaf = _find(leaves, action)
    old = _checked_sharding(leaf, action)
    new = moved(old, len(leaf.shape), action)
    places = {id(twin) for twin in twins(leaf, leaves)}
    moves = [id(other) in places for other in leaves]
    mesh = lowering.find_mesh(lowering.given_shardings(step), _platform(old))
    traced = lowering.trace(step, mesh)
    constraint = Constraint(shape=leaf.shape, old=old, new=new, axes=action.axes, source=action.source)
    changed = move_constraints(step, traced, constraint, lambda why: _refusal(action, why))
    return dataclasses.replace(
        changed,
        **_moved_arguments(changed, moves, new),
        in_shardings=_moved_prefix(step.in_shardings, _inputs(step), moves, old, new),
        out_shardings=_moved_prefix(
            step.out_shardings,
            traced.out_info,
            _moved_results(traced.out_info, leaves, moves, leaf),
            old,
            new,
        ),
    )


def moved(sharding: NamedSharding, rank: int, action: MoveAxis) -> NamedSharding:
    """The sharding with the action's mesh axes on its target dimension, innermost there."""
    entries = [list(axes) for axes in dimension_axes(sharding, rank)]
    entries[action.source] = [a for a in entries[action.source] if a not in action.axes]
    entries[action.target] += action.axes
    spec = PartitionSpec(*(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries))
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _find(leaves: Sequence[Leaf], action: MoveAxis) -> Leaf:
    for leaf in leaves:
        if leaf.name == action.parameter:
            return leaf
    raise _refusal(action, f"the step has no argument {action.parameter}")


def _checked_sharding(leaf: Leaf, action: MoveAxis) -> NamedSharding:
    if leaf.shape != action.shape:
        raise _refusal(action, f"its shape is {list(leaf.shape)} now")
    if leaf.sharding is None or leaf.spec is None:
        raise _refusal(action, "it has no sharding over a named mesh")
    rank = len(leaf.shape)
    if not (0 <= action.source < rank and 0 <= action.target < rank) or action.source == action.target:
        raise _refusal(action, f"there are no two such dimensions of {rank}")
    if not set(action.axes) <= set(leaf.spec[action.source]):
        raise _refusal(action, f"its sharding is {leaf.sharding.spec} now")
    sizes = leaf.sharding.mesh.shape
    parts = math.prod(sizes[a] for a in (*leaf.spec[action.target], *action.axes))
    if leaf.shape[action.target] % parts:
        raise _refusal(
            action, f"its dimension of {leaf.shape[action.target]} cannot be cut into {parts} parts"
        )
    return leaf.sharding


def _refusal(action: MoveAxis, why: str) -> UserError:
    return UserError(f"the plan no longer fits: {action.title}: {why}")


def _platform(sharding: NamedSharding) -> str:
    return cast(Any, sharding.mesh).devices.flat[0].platform


def _inputs(step: Step) -> tuple[Any, ...]:
    """The positional arguments that in_shardings are for."""
    return tuple(arguments(step).values())[: len(step.args)]


def _moved_arguments(step: Step, moves: Sequence[bool], new: NamedSharding) -> dict[str, Any]:
    flags = iter(moves)

    def move(leaf: Any) -> Any:
        return leaf.update(sharding=new) if next(flags) else leaf

    static = argument_numbers(step.static_argnums)
    args = tuple(a if i in static else tree.map(move, a) for i, a in enumerate(step.args))
    kwargs = {name: tree.map(move, step.kwargs[name]) for name in sorted(step.kwargs)}
    return {"args": args, "kwargs": kwargs}


def _moved_results(
    results: Any, leaves: Sequence[Leaf], moves: Sequence[bool], moved_leaf: Leaf
) -> list[bool]:
    """Which results take the place of what is moved: those of its shape whose path ends like its own."""
    alike = [(leaf, move) for leaf, move in zip(leaves, moves, strict=True) if leaf.shape == moved_leaf.shape]

    def takes_its_place(result: Leaf) -> bool:
        longest = max(common_suffix(result.path, leaf.path) for leaf, _ in alike)
        return any(move and common_suffix(result.path, leaf.path) == longest for leaf, move in alike)

    return [r.shape == moved_leaf.shape and takes_its_place(r) for r in tree_leaves(results, "")]


def _moved_prefix(
    prefix: Any, whole: Any, moves: Sequence[bool], old: NamedSharding, new: NamedSharding
) -> Any:
    """Shardings for a tree, given as a prefix of it, with those that are moved replaced."""
    if prefix is None:
        return None
    full = tree.broadcast(prefix, whole, is_leaf=_is_none)
    leaves, structure = tree.flatten(full, is_leaf=_is_none)
    changed = [new if move and _same(leaf, old) else leaf for leaf, move in zip(leaves, moves, strict=True)]
    return tree.unflatten(structure, changed)


def _same(sharding: Any, old: NamedSharding) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.is_equivalent_to(
        old, max(len(old.spec), len(sharding.spec))
    )


def _is_none(value: object) -> bool:
    return value is None
