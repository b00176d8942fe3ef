"""Sharding constraints inside a step, moved with the parameter whose layout they repeat."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from hloscope.capture.step import Step
from hloscope.rewrite.leaves import argument_numbers, dimension_axes, tree

Refuse = Callable[[str], Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A parameter's layout and the one that takes its place: mesh axes `axes` leave dimension `source`."""

    shape: tuple[int, ...]
    old: NamedSharding
    new: NamedSharding
    axes: tuple[str, ...]
    source: int

    def replacement(self, sharding: object, shape: tuple[int, ...]) -> NamedSharding | None:
        """What takes the place of a constraint to `sharding`; None if it is not this layout.

        The parameter's own shape counts, and what a loop over its leading dimensions hands out.
        """
        dropped = len(self.shape) - len(shape)
        if not isinstance(sharding, NamedSharding) or not 0 <= dropped <= self.source:
            return None
        rank = len(self.shape)
        old, new = (dimension_axes(s, rank)[dropped:] for s in (self.old, self.new))
        if shape != self.shape[dropped:] or dimension_axes(sharding, len(shape)) != old:
            return None
        if any(a for a in dimension_axes(self.new, rank)[:dropped]):
            return None
        spec = PartitionSpec(*(e or None for e in new))
        return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)

    def taken_apart_by(self, spec: PartitionSpec, shape: tuple[int, ...]) -> bool:
        """Whether a shard_map takes a value of this shape with `axes` on the dimension that they leave."""
        dropped = len(self.shape) - len(shape)
        if not 0 <= dropped <= self.source or shape != self.shape[dropped:]:
            return False
        entry = (*spec, *[None] * len(shape))[self.source - dropped]
        named = () if entry is None else (entry,) if isinstance(entry, str) else entry
        return bool(set(self.axes) & set(named))


def move_constraints(step: Step, traced: Any, layout: Constraint, refuse: Refuse) -> Step:
    """The step with every constraint to the old layout changed to the new one; itself if there is none.

    Raises what `refuse` makes of a reason where a shard_map takes the parameter in pieces along the old
    dimension: what it does with them inside would have to change too.
    """
    closed = traced.jaxpr
    for equation in _equations(closed.jaxpr):
        if equation.primitive.name == "shard_map":
            _check_shard_map(equation, layout, refuse)
    changed = _rewritten(closed, layout)
    return step if changed is closed else as_step(step, changed, traced)


def as_step(step: Step, closed: Any, traced: Any) -> Step:
    """A step that runs a closed jaxpr in place of the function that `traced` came from."""
    structure = tree.structure(traced.out_info)
    static = argument_numbers(step.static_argnums)
    run: Any = jaxpr_as_fun(closed)  # pyright: ignore[reportUnknownVariableType]

    @functools.wraps(step.fn)
    def fn(*args: Any, **kwargs: Any) -> Any:
        dynamic = [a for i, a in enumerate(args) if i not in static]
        return tree.unflatten(structure, run(*tree.leaves((dynamic, kwargs))))

    return dataclasses.replace(step, fn=fn)


def _check_shard_map(equation: Any, layout: Constraint, refuse: Refuse) -> None:
    for value, spec in zip(equation.invars, equation.params["in_specs"], strict=True):
        if layout.taken_apart_by(spec, tuple(value.aval.shape)):
            raise refuse(
                f"a shard_map takes it in the pieces of {spec} and gathers them itself: change both by hand"
            )


def _rewritten(jaxpr: Any, layout: Constraint) -> Any:
    """A jaxpr, open or closed, with the layout's constraints changed; itself if it has none."""
    # In jax 0.12 open and closed jaxprs are one class.
    body = getattr(jaxpr, "jaxpr", jaxpr)
    if body is not jaxpr:
        inner = _rewritten(body, layout)
        return jaxpr if inner is body else jaxpr.replace(jaxpr=inner)
    equations = [_equation(e, layout) for e in jaxpr.eqns]
    if all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=equations)


def _equation(equation: Any, layout: Constraint) -> Any:
    if equation.primitive.name == "sharding_constraint":
        shape = tuple(equation.outvars[0].aval.shape)
        new = layout.replacement(equation.params["sharding"], shape)
        return equation if new is None else equation.replace(params={**equation.params, "sharding": new})
    changed = {name: _parameter(value, layout) for name, value in equation.params.items()}
    if all(changed[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=changed)


def _parameter(value: Any, layout: Constraint) -> Any:
    if _is_jaxpr(value):
        return _rewritten(value, layout)
    if isinstance(value, tuple):
        inner = cast("tuple[Any, ...]", value)
        return tuple(_parameter(v, layout) for v in inner) if any(map(_is_jaxpr, inner)) else inner
    return value


def _is_jaxpr(value: object) -> bool:
    return hasattr(value, "eqns")


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr and of those inside it."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for value in equation.params.values():
            for inner in cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,):
                if _is_jaxpr(inner):
                    yield from _equations(inner)
