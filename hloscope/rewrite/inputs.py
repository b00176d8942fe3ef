"""Values to run a step with, where only its shapes are known."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.rewrite.leaves import tree


def sample(step: Step, seed: int) -> tuple[Sequence[Any], dict[str, Any]]:
    """Arguments and keyword arguments of a step as values on the host, the same for the same seed.

    The step's own `sample(seed)` is asked where there is one. Else floats are drawn from a normal
    distribution with deviation 0.1, and integers and booleans are 0 or 1, which is in range of any table.
    Raises UserError if `sample` gives other shapes than the step's.
    """
    if step.sample is not None:
        values = tuple(step.sample(seed))
        _check(values, step.args)
        return tree.map(_kept, values), _drawn(dict(step.kwargs), seed)
    args, kwargs = _drawn((tuple(step.args), dict(step.kwargs)), seed)
    return args, kwargs


def placed(values: Any, like: Any) -> Any:
    """Values on the devices of the shapes that they stand for."""

    def place(value: Any, shape: Any) -> Any:
        return jax.device_put(value, getattr(shape, "sharding", None)) if hasattr(shape, "shape") else value

    return tree.map(place, values, like)


def _drawn(shapes: Any, seed: int) -> Any:
    generator = np.random.default_rng(seed)

    def draw(shape: Any) -> Any:
        if not hasattr(shape, "shape"):
            return shape
        if jnp.issubdtype(shape.dtype, jnp.floating):
            return np.asarray(0.1 * generator.standard_normal(shape.shape, np.float32)).astype(shape.dtype)
        if jnp.issubdtype(shape.dtype, jnp.integer) or shape.dtype == bool:
            return generator.integers(0, 2, shape.shape).astype(shape.dtype)
        raise UserError(f"no values can be drawn for {shape.dtype}: give hs.Step(..., sample=...)")

    return tree.map(draw, shapes)


def on_host(value: Any) -> Any:
    """An array as numpy has it; of keys of random numbers their data."""
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _kept(value: Any) -> Any:
    return np.asarray(value) if hasattr(value, "shape") and not _is_key(value) else value


def _check(values: Any, shapes: Any) -> None:
    if tree.structure(values) != tree.structure(tuple(shapes)):
        raise UserError("Step.sample gives other arguments than Step.args: their trees differ")
    for value, shape in zip(tree.leaves(values), tree.leaves(tuple(shapes)), strict=True):
        theirs, ours = _kind(value), _kind(shape)
        if theirs != ours:
            raise UserError(f"Step.sample gives {theirs}, where Step.args has {ours}")


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else repr(value)
