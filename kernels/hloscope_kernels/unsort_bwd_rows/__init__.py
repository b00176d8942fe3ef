"""The backward pass of weighting expert outputs before they are unsorted, over the valid rows.

Forward, each row of the experts' output `y` is multiplied by its router weight and sent back to its
token. Backward, the gathered gradient of each row is multiplied by the same weight (towards y), and its
dot with `y` is the gradient of the weight. XLA makes one fusion over the full buffer of this.

Rows: only the blocks of 1,024 rows that begin below `limit` are read and written. In the last of them
the rows from `limit` on become zero. **Rows past it are not written**, nor are their dots: they hold
whatever was there (or, in the reference that runs off a TPU, zero). Dead dots must be dropped by an
out-of-range index or a select before they reach the gradient of the weights.

Numerics: float32 inside. The weighted gradient is rounded once and is bit for bit what the float32
reference computes. The dot is summed over the columns of each of 128 lanes in order, then over lanes:
float32 of another order than XLA's. Source of the contract: the published replacement of XLA's
full-buffer fusions in a ring-of-experts layer.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from hloscope_kernels.chip import Chip
from hloscope_kernels.choice import (
    Implementation,
    as_limit,
    check_alike,
    check_matrix,
    choose,
    unsupported_dtype,
)
from hloscope_kernels.unsort_bwd_rows.config import blocks_for
from hloscope_kernels.unsort_bwd_rows.pallas_tpu import unsort_bwd_rows_kernel
from hloscope_kernels.unsort_bwd_rows.reference import unsort_bwd_rows_reference


def unsort_bwd_rows(
    gradient: jax.Array,
    y: jax.Array,
    weights: jax.Array,
    limit: jax.typing.ArrayLike,
    *,
    donate: bool = False,
    implementation: Implementation = "auto",
) -> tuple[jax.Array, jax.Array]:
    """The gradient times its weight, and its dot with y, row by row.

    Args:
      gradient: [rows, hidden], the gradient gathered back into the buffer's order; bfloat16 or float32
        for the kernel.
      y: [rows, hidden] of the same dtype, what was weighted in the forward pass.
      weights: [rows] of any floating point dtype.
      limit: rows [0, limit) are valid; an integer, clipped to [0, rows].
      donate: write the weighted gradient in the place of `gradient`. Right where `gradient` dies here;
        where it lives on, XLA copies it first.
      implementation: see `choice.choose`.

    Returns:
      The weighted gradient [rows, hidden] of the dtype of `gradient`, and the dots float32[rows]; see
      the module's docstring for rows from `limit` on.

    Raises:
      ValueError: a shape or dtype is wrong, or the implementation asked for cannot run.
    """
    _check(gradient, y, weights)
    kernel = choose(implementation, partial(_reason, gradient))
    if kernel is None:
        return unsort_bwd_rows_reference(gradient, y, weights, as_limit(limit))
    rows, hidden = gradient.shape
    return unsort_bwd_rows_kernel(
        gradient,
        y,
        weights,
        as_limit(limit),
        blocks=blocks_for(rows, hidden, gradient.dtype.itemsize, kernel.chip),
        chip=kernel.chip,
        donate=donate,
        interpret=kernel.interpret,
    )


def supports(gradient: jax.Array | jax.ShapeDtypeStruct, chip: Chip | None) -> str | None:
    """Why the TPU kernel cannot take this buffer, None if it can.

    `chip` is the TPU that the trace is for (`hloscope_kernels.chip.tpu_chip()`), None on another
    platform.
    """
    if len(gradient.shape) != 2:
        return f"the buffer must be [rows, hidden], not {list(gradient.shape)}"
    if chip is None:
        return "the kernel is for TPU"
    return _reason(gradient, chip)


def _reason(gradient: jax.Array | jax.ShapeDtypeStruct, chip: Chip) -> str | None:
    del chip  # Column blocks of 128 fit every chip.
    return unsupported_dtype(gradient.dtype)


def _check(gradient: jax.Array, y: jax.Array, weights: jax.Array) -> None:
    check_matrix("gradient", gradient)
    check_alike("y", y, gradient.shape, gradient.dtype)
    check_alike("weights", weights, gradient.shape[:1], None)
    if not jnp.issubdtype(weights.dtype, jnp.floating):
        raise ValueError(f"weights must hold floating point numbers, not {weights.dtype}")
