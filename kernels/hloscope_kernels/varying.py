"""What a kernel must say about mesh axes inside `shard_map`, where jax checks which values vary over them."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from typing import Any, cast

import jax
from jax import lax


def varying_alike(*values: jax.Array) -> list[jax.Array]:
    """The same values, each marked as varying over every mesh axis that one of them varies over."""
    axes = [_axes(value) for value in values]
    everywhere = frozenset[str]().union(*axes)
    return [_vary(value, everywhere - own) for value, own in zip(values, axes, strict=True)]


def output(shape: tuple[int, ...], dtype: Any, *, like: jax.Array) -> jax.ShapeDtypeStruct:
    """An output of a kernel that varies over the mesh axes of `like`."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(like).manual_axis_type)


def _axes(value: jax.Array) -> frozenset[str]:
    return jax.typeof(value).manual_axis_type.varying


def _vary(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    if not axes:
        return value
    return cast("jax.Array", lax.pcast(value, tuple(sorted(axes)), to="varying"))
