"""Row-wise work in plain jax, of the kinds that training steps are made of: a step each, for `fusions_static.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hloscope as hs

F32, BF16 = jnp.float32, jnp.bfloat16
ROWS, COLUMNS = 65_536, 4_096
WIDE, WIDE_F32 = ((ROWS, COLUMNS), BF16), ((ROWS, COLUMNS), F32)
PER_ROW, WEIGHTS = ((ROWS,), F32), ((COLUMNS, COLUMNS), F32)


def _f32(x: jax.Array) -> jax.Array:
    return x.astype(F32)


def _rms_norm(x: jax.Array) -> jax.Array:
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(_f32(x)), axis=1, keepdims=True) + 1e-6)
    return (_f32(x) * scale).astype(BF16)


def _adam(p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def _unsort_bwd(g: jax.Array, y: jax.Array, w: jax.Array) -> Any:
    return (_f32(g) * w[:, None]).astype(BF16), jnp.sum(_f32(g) * _f32(y), axis=1)


# A name, the work, and shapes and dtypes of its operands.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[tuple[int, ...], Any], ...]]] = {
    "copy": (jnp.copy, (WIDE,)),
    "add": (jnp.add, (WIDE, WIDE)),
    "add_f32": (jnp.add, (WIDE_F32, WIDE_F32)),
    "scale": (lambda x: x * jnp.asarray(3, BF16), (WIDE,)),
    "to_f32": (_f32, (WIDE,)),
    "to_bf16": (lambda x: x.astype(BF16), (WIDE_F32,)),
    "silu": (jax.nn.silu, (WIDE,)),
    "gelu": (jax.nn.gelu, (WIDE,)),
    "gated": (lambda x: jax.nn.silu(x[:, : COLUMNS // 2]) * x[:, COLUMNS // 2 :], (WIDE,)),
    "exp_f32": (jnp.exp, (WIDE_F32,)),
    "divide_f32": (jnp.divide, (WIDE_F32, WIDE_F32)),
    "row_sum": (lambda x: jnp.sum(_f32(x), axis=1), (WIDE,)),
    "row_max_f32": (lambda x: jnp.max(x, axis=1), (WIDE_F32,)),
    "row_dot": (lambda x, y: jnp.sum(_f32(x) * _f32(y), axis=1), (WIDE, WIDE)),
    "column_sum": (lambda x: jnp.sum(_f32(x), axis=0), (WIDE,)),
    "row_scale": (lambda x, w: (_f32(x) * w[:, None]).astype(BF16), (WIDE, PER_ROW)),
    "rms_norm": (_rms_norm, (WIDE,)),
    "softmax": (lambda x: jax.nn.softmax(_f32(x), axis=1).astype(BF16), (WIDE,)),
    "adam": (_adam, (WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS)),
    "unsort_bwd": (_unsort_bwd, (WIDE, WIDE, PER_ROW)),
}


def _step(name: str) -> Any:
    function, operands = PROGRAMS[name]

    def build(topology: hs.Topology) -> hs.Step:
        return hs.Step(function, args=tuple(jax.ShapeDtypeStruct(*operand) for operand in operands))

    build.__name__ = build.__qualname__ = name
    return hs.step(topology="v6e:2x2")(build)


globals().update({name: _step(name) for name in PROGRAMS})
