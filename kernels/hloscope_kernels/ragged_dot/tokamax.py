"""Grouped matmuls by Tokamax, where it is installed: its kernels chosen and tuned by itself.

It is called as XLA's is, with the same care around it. Whether each of its kernels keeps dead rows out of the
grouped contraction is its own affair, so both operands are zeroed there first.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from hloscope_kernels.ragged_dot import xla
from hloscope_kernels.ragged_dot.bounds import in_groups


def installed() -> bool:
    """Whether Tokamax can be imported."""
    return importlib.util.find_spec("tokamax") is not None


def dot(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    transposed: bool,
    out_dtype: Any,
    precision: Any = None,
) -> jax.Array:
    """As `xla.dot`."""
    return xla.dot(
        lhs, rhs, bounds, transposed=transposed, out_dtype=out_dtype, precision=precision, general=_general()
    )


def contraction(
    lhs: jax.Array,
    rhs: jax.Array,
    bounds: jax.Array,
    *,
    out_dtype: Any,
    precision: Any = None,
    offset: bool = True,
) -> jax.Array:
    """As `xla.contraction`."""
    mine = in_groups(bounds, lhs.shape[0])
    return xla.contraction(
        jnp.where(mine, lhs, jnp.zeros_like(lhs)),
        jnp.where(mine, rhs, jnp.zeros_like(rhs)),
        bounds,
        out_dtype=out_dtype,
        precision=precision,
        offset=offset,
        general=_general(),
    )


def _general() -> xla.General:
    return importlib.import_module("tokamax").ragged_dot_general
