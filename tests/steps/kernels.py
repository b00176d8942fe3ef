"""Small Pallas kernels: one that moves more than it computes, one that computes more, and a step without any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import hloscope as hs

# More than VMEM holds, so that XLA keeps nothing of it there.
ROWS, COLUMNS, BLOCK = 131_072, 512, 512
X = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32)


def _double(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2.0


def _busy(x_ref: Any, out_ref: Any) -> None:
    x = x_ref[...]
    for _ in range(24):
        x = jnp.tanh(x) + 0.5
    out_ref[...] = x


def _block() -> pl.BlockSpec:
    def index(row: Any) -> tuple[Any, int]:
        return (row, 0)

    return pl.BlockSpec((BLOCK, COLUMNS), index)


def _rows(body: Callable[..., None], name: str, x: jax.Array) -> Any:
    spec = _block()
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(ROWS // BLOCK,),
        in_specs=[spec],
        out_specs=spec,
        name=name,
    )(x)


def _first_rows(limit: jax.Array, x: jax.Array) -> Any:
    """Only blocks below `limit`, which is computed: the grid depends on data."""
    spec = _block()
    return pl.pallas_call(
        _double,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=((limit + BLOCK - 1) // BLOCK,),
        in_specs=[spec],
        out_specs=spec,
        name="first_rows",
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x)


@hs.step(topology="v6e:2x2")
def double(topology: hs.Topology) -> hs.Step:
    return hs.Step(partial(_rows, _double, "double"), args=(X,))


@hs.step(topology="v6e:2x2")
def busy(topology: hs.Topology) -> hs.Step:
    return hs.Step(partial(_rows, _busy, "busy"), args=(X,))


@hs.step(topology="v6e:2x2")
def first_rows(topology: hs.Topology) -> hs.Step:
    limit = jax.ShapeDtypeStruct((), jnp.int32)
    return hs.Step(_first_rows, args=(limit, X), valid_fraction=0.5)


@hs.step(topology="v6e:2x2")
def no_kernel(topology: hs.Topology) -> hs.Step:
    return hs.Step(jnp.negative, args=(X,))


@hs.step(topology="v6e:2x2")
def scalar(topology: hs.Topology) -> hs.Step:
    return hs.Step(jnp.negative, args=(jax.ShapeDtypeStruct((), jnp.float32),))
