"""`ragged_dot` itself: checks, the list of weights, and the way to the chosen implementation."""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope_kernels.ragged_dot.bounds import Offset, Sizes, row_bounds
from hloscope_kernels.ragged_dot.choose import IMPLEMENTATIONS, Implementation, Problem, choose, device_kind
from hloscope_kernels.ragged_dot.gradients import How, dot

Weights = jax.Array | Sequence[jax.Array]


def ragged_dot(
    lhs: jax.Array,
    rhs: Weights,
    group_sizes: Sizes,
    group_offset: Offset = None,
    *,
    implementation: Implementation = "auto",
    preferred_element_type: Any = None,
    precision: Any = None,
    interpret: Any = False,
) -> jax.Array:
    """Multiply each group of rows of `lhs` by its own matrix of `rhs`.

    The rows of lhs stand in order of their groups: the first `group_sizes[0]` rows are group 0's, and so on.
    Rows of groups that `rhs` does not hold, and rows beyond the last group, give zeros, whatever they contain
    (NaN included); `rhs` of a group without rows is not read. Sums are in float32 for 16- and 32-bit floats,
    rounded once. Differentiable in `lhs` and `rhs`, to any order, in reverse mode; dead rows get zero gradients.

    Args:
      lhs: `[m, k]`.
      rhs: `[g_local, k, n]`, or a sequence of g_local arrays `[k, n]`. A sequence is stacked, which costs one
        copy of all weights a call; keep them stacked where that matters.
      group_sizes: `[g]` integers, on the host (checked) or on a device (not checked: negative sizes count as
        empty, and what exceeds m is cut off). Empty groups are fine, all of them empty too.
      group_offset: the group that `rhs[0]` belongs to, an integer on the host or a device; None means that rhs
        holds all groups. Groups outside `[0, g)` have no rows.
      implementation: "auto" (see `explain`), "xla", "pallas_tpu", "pallas_gpu" or "tokamax".
      preferred_element_type: dtype of the result; by default that of lhs and rhs promoted.
      precision: as in `jax.lax.dot_general`, for float32 operands.
      interpret: run a Pallas implementation in interpret mode, for tests: True, or `pltpu.InterpretParams`.

    Returns:
      `[m, n]`.

    Raises:
      ValueError: shapes or sizes that do not fit, or an implementation that cannot run here, and why.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"ragged_dot: implementation {implementation!r} is none of {', '.join(IMPLEMENTATIONS)}"
        )
    weights = _stacked(rhs)
    _check_shapes(lhs, weights, group_sizes, group_offset)
    dtype = jnp.dtype(preferred_element_type or jnp.promote_types(lhs.dtype, weights.dtype))
    if 0 in (*lhs.shape, *weights.shape):
        return jnp.zeros((lhs.shape[0], weights.shape[2]), dtype)
    bounds = row_bounds(group_sizes, group_offset, local_groups=weights.shape[0], rows=lhs.shape[0])
    how = How(
        implementation=implementation,
        precision=precision,
        interpret=interpret,
        offset=group_offset is not None,
    )
    return dot(lhs, weights, bounds, False, dtype, how)


def explain(
    lhs: jax.Array | jax.ShapeDtypeStruct,
    rhs: jax.Array | jax.ShapeDtypeStruct | Sequence[Any],
    *,
    device: str | None = None,
    preferred_element_type: Any = None,
) -> str:
    """What `implementation="auto"` takes for a call and for its two gradients, one line each with the reason.

    Args:
      lhs: `[m, k]`, or its shape and dtype.
      rhs: `[g_local, k, n]` or a sequence of `[k, n]`, or their shapes and dtypes.
      device: as jax names it, for instance "TPU v6 lite"; by default the one of the current trace.
      preferred_element_type: as in `ragged_dot`.
    """
    discrete = isinstance(rhs, Sequence)
    one = rhs[0] if discrete else rhs
    groups, (k, n) = (len(rhs) if discrete else rhs.shape[0]), one.shape[-2:]
    m = lhs.shape[0]
    x, w = str(lhs.dtype), str(one.dtype)
    out = str(jnp.dtype(preferred_element_type or jnp.promote_types(lhs.dtype, one.dtype)))
    device = device or device_kind()
    problems = {
        "result": Problem(operation="dot", m=m, k=k, n=n, groups=groups, dtypes=(x, w, out)),
        "d_lhs": Problem(operation="transposed", m=m, k=n, n=k, groups=groups, dtypes=(out, w, x)),
        "d_rhs": Problem(operation="contraction", m=m, k=k, n=n, groups=groups, dtypes=(x, out, w)),
    }
    choices = {name: choose(problem, device) for name, problem in problems.items()}
    lines = [f"{name}: {choice.implementation}: {choice.reason}" for name, choice in choices.items()]
    if discrete:
        mib = groups * k * n * one.dtype.itemsize / 2**20
        lines.append(
            f"rhs: {groups} arrays are stacked: a copy of {mib:.1f} MiB a call, and one of their gradient"
        )
    return "\n".join(lines)


def _stacked(rhs: Weights) -> jax.Array:
    if not isinstance(rhs, Sequence):
        return rhs
    if not rhs:
        raise ValueError("ragged_dot: rhs is an empty sequence; give at least one [k, n] array")
    first = rhs[0]
    for i, weight in enumerate(rhs):
        if weight.ndim != 2 or weight.shape != first.shape or weight.dtype != first.dtype:
            raise ValueError(
                f"ragged_dot: the arrays of rhs must be alike, [k, n] each: rhs[0] is {first.dtype}"
                f"{list(first.shape)}, rhs[{i}] is {weight.dtype}{list(weight.shape)}"
            )
    return jnp.stack(rhs)


def _check_shapes(lhs: jax.Array, rhs: jax.Array, group_sizes: Sizes, group_offset: Offset) -> None:
    if lhs.ndim != 2 or rhs.ndim != 3 or lhs.shape[1] != rhs.shape[1]:
        raise ValueError(
            f"ragged_dot: lhs must be [m, k] and rhs [g, k, n], got {list(lhs.shape)} and {list(rhs.shape)}"
        )
    if np.ndim(group_sizes) != 1:
        raise ValueError(f"ragged_dot: group_sizes must be [g], got {list(np.shape(group_sizes))}")
    for name, values in (("group_sizes", group_sizes), ("group_offset", group_offset)):
        dtype = values.dtype if isinstance(values, jax.Array) else np.asarray(values).dtype
        if values is not None and np.size(values) and not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(f"ragged_dot: {name} must be integers, got {dtype}")
    if group_offset is not None and np.size(group_offset) != 1:
        raise ValueError(f"ragged_dot: group_offset must be one integer, got {list(np.shape(group_offset))}")
