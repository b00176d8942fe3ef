"""The plain XLA reference of `valid_rows`: the program on all rows in float32, zeros where rows are not valid."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hloscope_kernels.valid_rows.evaluate import bind, widen
from hloscope_kernels.valid_rows.program import Constant, Operand, Program
from hloscope_kernels.valid_rows.roles import ELEMENTWISE


def valid_rows_reference(
    program: Program, operands: Sequence[jax.Array], limit: jax.Array
) -> list[jax.Array]:
    """The program's results, rounded once; zeros in rows from `limit` on."""
    values: dict[int, jax.Array] = dict(zip(program.inputs, map(widen, operands), strict=True))
    values.update((value, widen(array)) for value, array in program.captured.items())

    def read(operand: Operand) -> jax.Array:
        if isinstance(operand, Constant):
            return widen(jnp.asarray(operand.value, operand.dtype))
        return values[operand]

    for operation in program.operations:
        given = [read(operand) for operand in operation.operands]
        # Outside of a kernel it counts over which mesh axes a value varies.
        if operation.name in ELEMENTWISE - {"pcast", "pvary"}:
            results = bind(operation, given)
        else:
            bound: Any = operation.primitive.bind(*given, **_wide_params(operation.params))
            results = list(bound) if operation.primitive.multiple_results else [bound]
        values.update(zip(operation.results, results, strict=True))
    return [_masked(read(output), limit, program.types[output].dtype) for output in _values(program)]


def _values(program: Program) -> list[int]:
    return [output for output in program.outputs if not isinstance(output, Constant)]


def _wide_params(params: dict[str, Any]) -> dict[str, Any]:
    """An iota of bfloat16 counts in float32 too."""
    dtype = params.get("dtype")
    return params if dtype is None else params | {"dtype": widen(jnp.zeros((), dtype)).dtype}


def _masked(value: jax.Array, limit: jax.Array, dtype: Any) -> jax.Array:
    row = jax.lax.broadcasted_iota(jnp.int32, value.shape, 0)
    return jnp.where(row < limit, value, jnp.zeros_like(value)).astype(dtype)
