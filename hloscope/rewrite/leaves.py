"""The arrays that a step is called with and returns, by name and by their place in the tree."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from hloscope.capture.step import Step

Path = tuple[str, ...]

# Their types say nothing of what is in a tree.
tree: Any = jax.tree
tree_util: Any = jax.tree_util


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array: `name` as the compiled module has it (`state.params['wo']`), `path` its keys one by one.

    `shape` is global. `sharding` is None where none is given, or where it is not over a named mesh.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    sharding: NamedSharding | None
    donated: bool = False

    @property
    def spec(self) -> tuple[tuple[str, ...], ...] | None:
        """The mesh axes of each dimension; None without a sharding."""
        return None if self.sharding is None else dimension_axes(self.sharding, len(self.shape))


def dimension_axes(sharding: NamedSharding, rank: int) -> tuple[tuple[str, ...], ...]:
    """The mesh axes that each of `rank` dimensions is laid over, outermost first."""
    spec: Sequence[Any] = tuple(sharding.spec)
    entries = [*spec, *[None] * (rank - len(spec))]
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)


def arguments(step: Step) -> dict[str, Any]:
    """What the step is called with, by name, static arguments left out: `x`, `args[0]`, in order."""
    static = argument_numbers(step.static_argnums)
    names = _argument_names(step)
    found = {name: a for i, (name, a) in enumerate(zip(names, step.args, strict=True)) if i not in static}
    return found | {name: step.kwargs[name] for name in sorted(step.kwargs)}


def argument_numbers(given: int | Sequence[int]) -> tuple[int, ...]:
    """A step's `donate_argnums` or `static_argnums`, which `Step` has made a tuple of."""
    return (given,) if isinstance(given, int) else tuple(given)


def argument_leaves(step: Step) -> list[Leaf]:
    """Every array among the step's arguments, in the order in which jax flattens them."""
    donated = argument_numbers(step.donate_argnums)
    given_away = {name for i, name in enumerate(_argument_names(step)) if i in donated}
    return [
        leaf
        for name, value in arguments(step).items()
        for leaf in tree_leaves(value, name, donated=name in given_away)
    ]


def tree_leaves(values: Any, name: str, *, donated: bool = False) -> list[Leaf]:
    """The arrays of a pytree that is called `name`."""
    return [_leaf(name, keys, value, donated) for keys, value in tree_util.tree_leaves_with_path(values)]


def _leaf(name: str, keys: tuple[Any, ...], value: Any, donated: bool) -> Leaf:
    sharding = getattr(value, "sharding", None)
    return Leaf(
        name=name + tree_util.keystr(keys),
        path=(name, *(tree_util.keystr((key,), simple=True) for key in keys)),
        shape=tuple(getattr(value, "shape", ())),
        dtype=str(getattr(value, "dtype", type(value).__name__)),
        sharding=sharding if isinstance(sharding, NamedSharding) else None,
        donated=donated,
    )


def _argument_names(step: Step) -> list[str]:
    """The name of each positional argument, as jax makes it from the function's signature."""
    names: list[str] = []
    try:
        parameters = list(inspect.signature(step.fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(len(step.args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"args[{i}]" for i in range(len(names), len(step.args))]
    return names[: len(step.args)]


def common_suffix(one: Path, other: Path) -> int:
    """How many keys two paths share at their end."""
    shared = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a != b:
            return shared
        shared += 1
    return shared


def twins(leaf: Leaf, leaves: Sequence[Leaf]) -> list[Leaf]:
    """The leaf and those in its place in trees like its own: the moments of an optimizer.

    They have its shape and sharding, and share the longest end of its path that any of them shares.
    """
    alike = [o for o in leaves if o is not leaf and (o.shape, o.sharding) == (leaf.shape, leaf.sharding)]
    longest = max((common_suffix(leaf.path, o.path) for o in alike), default=0)
    if longest == 0:
        return [leaf]
    return [o for o in leaves if o is leaf or (o in alike and common_suffix(leaf.path, o.path) == longest)]
