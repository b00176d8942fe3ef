"""What users know of rows: `valid_rows` marks a buffer, `register_demand` tells what an own kernel reads."""

# jax annotates none of this.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from hloscope.errors import UserError

if TYPE_CHECKING:
    import jax

MARK = "hloscope_valid_rows"


def valid_rows(x: jax.Array, limit: jax.typing.ArrayLike) -> jax.Array:
    """`x` itself, with a promise: no result depends on rows from `limit` on, of `x` and of its gradient.

    Args:
      x: [rows, ...].
      limit: an integer scalar; rows [0, limit) are valid.

    The promise is believed, not checked: where a row behind the limit does reach a result, a rewritten step
    is wrong. It costs nothing in the compiled program, and holds under jit, grad, checkpoint, scan, shard_map
    and vmap with one limit for all.

    Raises:
      UserError: shapes or types do not fit, or vmap with a limit per example.
    """
    import jax.numpy as jnp

    from hloscope_kernels.varying import varying_alike

    value, end = jnp.asarray(x), jnp.asarray(limit)
    if value.ndim == 0:
        raise UserError("valid_rows: x must have rows, but it is a scalar")
    if end.ndim or not jnp.issubdtype(end.dtype, jnp.integer):
        raise UserError(f"valid_rows: limit must be one integer, got {end.dtype}{list(end.shape)}")
    value, end = varying_alike(value, end)
    return cast("jax.Array", _primitive().bind(value, end))


@cache
def _primitive() -> Any:
    """The identity as a primitive: nothing else survives differentiation and dead code elimination."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad as typed_ad
    from jax.interpreters import batching, mlir

    mark: Any = Primitive(MARK)
    ad: Any = typed_ad

    def identity(x: Any, limit: Any) -> Any:
        return x

    def lowering(context: Any, x: Any, limit: Any) -> Any:
        return [x]

    def jvp(primals: Any, tangents: Any) -> Any:
        (x, limit), (tangent, _) = primals, tangents
        marked = mark.bind(x, limit)
        if type(tangent) is ad.Zero:
            return marked, ad.Zero.from_primal_value(marked)
        return marked, mark.bind(tangent, limit)

    def transpose(gradient: Any, x: Any, limit: Any) -> Any:
        if type(gradient) is ad.Zero:
            return ad.Zero(x.aval), None
        return mark.bind(gradient, limit), None

    def batch(values: Any, axes: Any) -> Any:
        if axes[1] is not None:
            raise UserError("valid_rows: under vmap one limit must hold for all examples")
        # Rows are no longer in front: the promise is dropped, the value stays.
        return values[0], axes[0]

    mark.def_impl(identity)
    mark.def_abstract_eval(identity)
    mlir.register_lowering(mark, lowering)
    ad.primitive_jvps[mark] = jvp
    ad.primitive_transposes[mark] = transpose
    batching.primitive_batchers[mark] = batch
    return mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Which rows a call reads, by position of its operands; operands not named are read whole.

    Attributes:
      below_sum: operand to the operand whose sum its rows are read below: rows of a grouped matmul to its
        group sizes.
      below: operand to the scalar operand that it is read below.
    """

    below_sum: Mapping[int, int]
    below: Mapping[int, int]


_registered: dict[str, Reads] = {}


def register_demand(
    name: str, *, below_sum: Mapping[int, int] | None = None, below: Mapping[int, int] | None = None
) -> None:
    """Tell which rows an own kernel reads.

    Args:
      name: of the jitted function, custom-derivative function, `pallas_call` or primitive, as a jaxpr shows it.
      below_sum: position of an operand [rows, ...] to the position of the integer vector whose sum its rows
        are read below, as a grouped matmul reads rows below the sum of its group sizes.
      below: position of an operand to the position of the integer scalar that its rows are read below.

    All other operands count as read whole. The kernel must not let what lies behind the limit reach a result,
    be it by multiplying it with zero.

    Raises:
      UserError: a position is no whole number, or one operand is named twice.
    """
    sums, ends = dict(below_sum or {}), dict(below or {})
    for position in (*sums, *sums.values(), *ends, *ends.values()):
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"register_demand({name!r}): {position!r} is no position of an operand")
    if both := sorted(sums.keys() & ends.keys()):
        raise UserError(f"register_demand({name!r}): operand {both[0]} is given twice")
    _registered[name] = Reads(below_sum=sums, below=ends)


def registered() -> Mapping[str, Reads]:
    """What was registered, by name."""
    return _registered
