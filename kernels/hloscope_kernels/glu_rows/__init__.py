"""The gated linear unit of a mixture-of-experts layer, over the valid rows of a ragged buffer.

`glu_rows` computes act(gate) * up, `glu_rows_bwd` its gradient, and `fused_glu` is both as one
differentiable function. Gate and up lie side by side in one buffer [rows, 2 * mlp] and are read in place.

Rows: only the blocks of rows that begin below `limit` are read and written. In the last of them the
rows from `limit` on become zero. **Rows past it are not written**: they hold whatever was there (or, in
the reference that runs off a TPU, zero). Whoever reads the result must not let them through: grouped
matmuls that end at the sum of their group sizes do not read them, and a mask must select, not multiply.

Numerics: float32 inside, rounded once to the dtype of the buffer; see `formula.py`. Bit for bit what
the float32 reference computes. Source of the contract: the published replacement of XLA's full-buffer
fusions in a ring-of-experts layer.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax

from hloscope_kernels.chip import Chip
from hloscope_kernels.choice import (
    Implementation,
    as_limit,
    check_alike,
    check_matrix,
    choose,
    unsupported_dtype,
)
from hloscope_kernels.glu_rows.config import backward_blocks, forward_blocks, widest_mlp
from hloscope_kernels.glu_rows.formula import ACTIVATIONS, Activation
from hloscope_kernels.glu_rows.pallas_tpu import glu_rows_bwd_kernel, glu_rows_kernel
from hloscope_kernels.glu_rows.reference import glu_rows_bwd_reference, glu_rows_reference


def glu_rows(
    fused: jax.Array,
    limit: jax.typing.ArrayLike,
    activation: Activation = "silu",
    *,
    implementation: Implementation = "auto",
) -> jax.Array:
    """act(gate) * up in the valid rows.

    Args:
      fused: [rows, 2 * mlp], gate in the first half of the columns and up in the second; bfloat16 or
        float32 for the kernel.
      limit: rows [0, limit) are valid; an integer, clipped to [0, rows].
      activation: "silu", or "gelu" (by tanh, as `jax.nn.gelu`).
      implementation: see `choice.choose`.

    Returns:
      [rows, mlp] of the dtype of `fused`; see the module's docstring for rows from `limit` on.

    Raises:
      ValueError: a shape, dtype or name is wrong, or the implementation asked for cannot run.
    """
    _check(fused, activation)
    kernel = choose(implementation, partial(_reason, fused))
    if kernel is None:
        return glu_rows_reference(fused, as_limit(limit), activation)
    rows, width = fused.shape
    return glu_rows_kernel(
        fused,
        as_limit(limit),
        activation=activation,
        blocks=forward_blocks(rows, width // 2, fused.dtype.itemsize, kernel.chip),
        chip=kernel.chip,
        interpret=kernel.interpret,
    )


def glu_rows_bwd(
    fused: jax.Array,
    gradient: jax.Array,
    limit: jax.typing.ArrayLike,
    activation: Activation = "silu",
    *,
    donate: bool = False,
    implementation: Implementation = "auto",
) -> jax.Array:
    """[d_gate, d_up] in the valid rows, both halves in one pass.

    Args:
      fused: [rows, 2 * mlp], as for `glu_rows`.
      gradient: [rows, mlp], the gradient of what `glu_rows` returned, of the same dtype.
      limit: rows [0, limit) are valid.
      activation: "silu" or "gelu".
      donate: write the result in the place of `fused`. Right where `fused` dies here: a kernel's output
        cannot take over a dying input's buffer by itself, as a fusion's can, and the step would need
        one buffer more. Where `fused` lives on, XLA copies it first.
      implementation: see `choice.choose`.

    Returns:
      [rows, 2 * mlp] of the dtype of `fused`. A zero never has a sign: -0 becomes +0, as where XLA pads
      the two halves and adds them.

    Raises:
      ValueError: a shape, dtype or name is wrong, or the implementation asked for cannot run.
    """
    _check(fused, activation)
    rows, width = fused.shape
    check_alike("gradient", gradient, (rows, width // 2), fused.dtype)
    kernel = choose(implementation, partial(_reason, fused))
    if kernel is None:
        return glu_rows_bwd_reference(fused, gradient, as_limit(limit), activation)
    return glu_rows_bwd_kernel(
        fused,
        gradient,
        as_limit(limit),
        activation=activation,
        blocks=backward_blocks(rows, width // 2, fused.dtype.itemsize, kernel.chip),
        chip=kernel.chip,
        donate=donate,
        interpret=kernel.interpret,
    )


def fused_glu(
    fused: jax.Array,
    limit: jax.typing.ArrayLike,
    activation: Activation = "silu",
    *,
    donate: bool = True,
    implementation: Implementation = "auto",
) -> jax.Array:
    """`glu_rows` with a gradient: keeps only the buffer and the limit for the backward pass.

    Works under jit, checkpoint, scan, vmap and shard_map. Under vmap with one limit for all, the kernel
    gets one more grid dimension; with a limit per example it runs once per example.

    Args:
      fused: [rows, 2 * mlp], as for `glu_rows`.
      limit: rows [0, limit) are valid; has no gradient.
      activation: "silu" or "gelu".
      donate: let the gradient take the place of the buffer in the backward pass; see `glu_rows_bwd`.
        In a training step the backward pass is the buffer's last reader.
      implementation: see `choice.choose`.

    Returns:
      [rows, mlp] of the dtype of `fused`, as `glu_rows` does.

    Raises:
      ValueError: a shape, dtype or name is wrong, or the implementation asked for cannot run.
    """
    return cast("jax.Array", _fused_glu(activation, donate, implementation, fused, as_limit(limit)))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _fused_glu(
    activation: Activation,
    donate: bool,
    implementation: Implementation,
    fused: jax.Array,
    limit: jax.Array,
) -> jax.Array:
    del donate
    return glu_rows(fused, limit, activation, implementation=implementation)


def _fused_glu_fwd(
    activation: Activation,
    donate: bool,
    implementation: Implementation,
    fused: jax.Array,
    limit: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    del donate
    return glu_rows(fused, limit, activation, implementation=implementation), (fused, limit)


def _fused_glu_bwd(
    activation: Activation,
    donate: bool,
    implementation: Implementation,
    kept: tuple[jax.Array, jax.Array],
    gradient: jax.Array,
) -> tuple[jax.Array, None]:
    fused, limit = kept
    result = glu_rows_bwd(fused, gradient, limit, activation, donate=donate, implementation=implementation)
    return result, None


_fused_glu.defvjp(_fused_glu_fwd, _fused_glu_bwd)


def supports(fused: jax.Array | jax.ShapeDtypeStruct, activation: str, chip: Chip | None) -> str | None:
    """Why the TPU kernels cannot take this buffer, None if they can.

    `chip` is the TPU that the trace is for (`hloscope_kernels.chip.tpu_chip()`), None on another
    platform.
    """
    if activation not in ACTIVATIONS:
        return f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}"
    if len(fused.shape) != 2 or fused.shape[1] % 2:
        return f"the buffer must be [rows, 2 * mlp], not {list(fused.shape)}"
    if chip is None:
        return "the kernel is for TPU"
    return _reason(fused, chip)


def _reason(fused: jax.Array | jax.ShapeDtypeStruct, chip: Chip) -> str | None:
    mlp = fused.shape[1] // 2
    widest = widest_mlp(fused.dtype.itemsize, chip)
    if mlp > widest:
        return f"16 rows of mlp {mlp} do not fit the VMEM of this TPU, which takes up to {widest}"
    return unsupported_dtype(fused.dtype)


def _check(fused: jax.Array, activation: Any) -> None:
    check_matrix("fused", fused)
    if fused.shape[1] % 2:
        raise ValueError(f"fused must be [rows, 2 * mlp] with an even width, not {list(fused.shape)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
