"""An oracle for "float32 inside, rounded once": the user's own bfloat16 program, evaluated in float32.

It walks the jaxpr and gives every operation float32 operands, as XLA does inside a fusion: constants
keep the bfloat16 rounding that the program gave them, conversions between the two types do nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core


def evaluate_wide(program: Any, *operands: jax.Array) -> list[jax.Array]:
    """The results of `program`, evaluated in float32 and rounded once to the dtypes that it returns."""
    closed = jax.make_jaxpr(program)(*operands)
    results = _evaluate(closed, [_wide(operand) for operand in operands])
    return [result.astype(aval.dtype) for result, aval in zip(results, closed.out_avals, strict=True)]


def _wide(value: Any) -> jax.Array:
    value = jnp.asarray(value)
    return value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value


def _evaluate(program: Any, operands: list[jax.Array]) -> list[jax.Array]:
    """Evaluate a jaxpr, closed or open."""
    jaxpr = getattr(program, "jaxpr", program)
    values = dict(zip(jaxpr.constvars, map(_wide, getattr(program, "consts", ())), strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> jax.Array:
        return (
            _wide(jnp.asarray(atom.val, atom.aval.dtype)) if isinstance(atom, core.Literal) else values[atom]
        )

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        values.update(zip(equation.outvars, _apply(equation, inputs), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: list[jax.Array]) -> list[jax.Array]:
    inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
    if inner is not None:
        return _evaluate(inner, inputs)
    params = dict(equation.params)
    if equation.primitive.name == "convert_element_type" and params["new_dtype"] == jnp.bfloat16:
        return [inputs[0].astype(jnp.float32)]
    results = equation.primitive.bind(*inputs, **params)
    return list(results) if equation.primitive.multiple_results else [results]
