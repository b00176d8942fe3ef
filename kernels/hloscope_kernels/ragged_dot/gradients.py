"""The two grouped matmuls and their gradients, which are grouped matmuls again, to any order.

With `out = dot(lhs, rhs)`: the gradient of lhs is a dot with rhs transposed, the gradient of rhs the contraction
of lhs and the output's gradient over each group's rows. With `out = contraction(lhs, rhs)`, given `[g, p, q]`
back: the gradient of lhs is a dot of rhs with it transposed, the gradient of rhs a dot of lhs with it.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from hloscope_kernels.ragged_dot import pallas_gpu, pallas_tpu, tokamax, xla
from hloscope_kernels.ragged_dot.choose import Problem, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How every product of one call and of its gradients is computed.

    Attributes:
      implementation: "auto" chooses for each product by itself.
      precision: as in `lax.dot_general`.
      interpret: run Pallas kernels in interpret mode.
      offset: whether the first group held here may start after row 0.
    """

    implementation: str
    precision: Any
    interpret: Any
    offset: bool


def _dot(
    lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, transposed: bool, out_dtype: Any, how: How
) -> jax.Array:
    """`[m, k]` times the groups of `[g, k, n]` (`[g, n, k]` when transposed): `[m, n]`."""
    (m, k), n = lhs.shape, rhs.shape[1 if transposed else 2]
    operation = "transposed" if transposed else "dot"
    problem = _problem(operation, (m, k, n), rhs.shape[0], lhs, rhs, out_dtype)
    common: dict[str, Any] = {"transposed": transposed, "out_dtype": out_dtype, "precision": how.precision}
    match resolve(how.implementation, problem, interpret=bool(how.interpret)):
        case "pallas_tpu":
            return pallas_tpu.dot(lhs, rhs, bounds, interpret=how.interpret, **common)
        case "pallas_gpu":
            return pallas_gpu.dot(lhs, rhs, bounds, interpret=how.interpret, **common)
        case "tokamax":
            return tokamax.dot(lhs, rhs, bounds, **common)
        case _:
            return xla.dot(lhs, rhs, bounds, **common)


def _contraction(lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, out_dtype: Any, how: How) -> jax.Array:
    """`[m, p]` and `[m, q]` contracted over each group's rows: `[g, p, q]`."""
    (m, p), q = lhs.shape, rhs.shape[1]
    problem = _problem("contraction", (m, p, q), bounds.shape[0] - 1, lhs, rhs, out_dtype)
    common: dict[str, Any] = {"out_dtype": out_dtype, "precision": how.precision}
    match resolve(how.implementation, problem, interpret=bool(how.interpret)):
        case "pallas_tpu":
            return pallas_tpu.contraction(lhs, rhs, bounds, interpret=how.interpret, **common)
        case "pallas_gpu":
            return pallas_gpu.contraction(lhs, rhs, bounds, interpret=how.interpret, **common)
        case "tokamax":
            return tokamax.contraction(lhs, rhs, bounds, offset=how.offset, **common)
        case _:
            return xla.contraction(lhs, rhs, bounds, offset=how.offset, **common)


Operands = tuple[jax.Array, jax.Array, jax.Array]


def _dot_forward(
    lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, transposed: bool, out_dtype: Any, how: How
) -> tuple[jax.Array, Operands]:
    return dot(lhs, rhs, bounds, transposed, out_dtype, how), (lhs, rhs, bounds)


def _dot_backward(
    transposed: bool, out_dtype: Any, how: How, saved: Operands, grad: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    lhs, rhs, bounds = saved
    d_lhs = dot(grad, rhs, bounds, not transposed, lhs.dtype, how)
    factors = (grad, lhs) if transposed else (lhs, grad)
    d_rhs = contraction(*factors, bounds, rhs.dtype, how)
    return _summed(lhs, d_lhs), _summed(rhs, d_rhs), None


def _contraction_forward(
    lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, out_dtype: Any, how: How
) -> tuple[jax.Array, Operands]:
    return contraction(lhs, rhs, bounds, out_dtype, how), (lhs, rhs, bounds)


def _contraction_backward(
    out_dtype: Any, how: How, saved: Operands, grad: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    lhs, rhs, bounds = saved
    d_lhs = dot(rhs, grad, bounds, True, lhs.dtype, how)
    d_rhs = dot(lhs, grad, bounds, False, rhs.dtype, how)
    return _summed(lhs, d_lhs), _summed(rhs, d_rhs), None


_dot_vjp = jax.custom_vjp(_dot, nondiff_argnums=(3, 4, 5))
_dot_vjp.defvjp(_dot_forward, _dot_backward)
dot: Callable[[jax.Array, jax.Array, jax.Array, bool, Any, How], jax.Array] = _dot_vjp

_contraction_vjp = jax.custom_vjp(_contraction, nondiff_argnums=(3, 4))
_contraction_vjp.defvjp(_contraction_forward, _contraction_backward)
contraction: Callable[[jax.Array, jax.Array, jax.Array, Any, How], jax.Array] = _contraction_vjp


def _summed(primal: jax.Array, gradient: jax.Array) -> jax.Array:
    """Inside `shard_map`: summed over the mesh axes that the gradient varies over and its primal does not."""
    varying = jax.typeof(gradient).manual_axis_type.varying - jax.typeof(primal).manual_axis_type.varying
    return cast("jax.Array", lax.psum(gradient, tuple(sorted(varying)))) if varying else gradient


def _problem(
    operation: Any, sizes: tuple[int, int, int], groups: int, lhs: jax.Array, rhs: jax.Array, out_dtype: Any
) -> Problem:
    m, k, n = sizes
    dtypes = (str(lhs.dtype), str(rhs.dtype), str(jnp.dtype(out_dtype)))
    return Problem(operation=operation, m=m, k=k, n=n, groups=groups, dtypes=dtypes)
