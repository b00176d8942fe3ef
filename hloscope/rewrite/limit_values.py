"""Limits as values that a body can compute: from symbols back to variables."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from hloscope.rewrite.facts import Facts
from hloscope.rewrite.limits import Limits
from hloscope.rewrite.symbols import Expr, literal_value, sums_exactly
from hloscope_kernels.choice import as_limit

# Vectors that may be group sizes or their running sums: one entry per expert.
_MOST_GROUPS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LimitValue:
    """How to compute a limit.

    Attributes:
      sources: the variables to compute it from.
      make: values of these to the limit, an int32 scalar.
    """

    sources: tuple[Any, ...]
    make: Callable[..., Any]


@dataclass(slots=True)
class LimitValues:
    """The limits that can be computed in one body, for buffers of `rows` rows."""

    facts: Facts
    limits: Limits
    rows: int
    _known: dict[Expr, LimitValue] = field(default_factory=dict[Expr, LimitValue])

    def learn(self, variables: Sequence[Any]) -> None:
        """Take in the scalars of a body, and the sums of its vectors; earlier variables win."""
        for var in variables:
            expr = self.facts.of[var]
            if expr.dtype == "bool" or "int" not in expr.dtype:
                continue
            if expr.shape == ():
                self._learn(expr, LimitValue(sources=(var,), make=_same))
            elif len(expr.shape) == 1 and 0 < expr.shape[0] <= _MOST_GROUPS and sums_exactly(expr.dtype):
                total = self.facts.symbols.total(expr)
                self._learn(total, LimitValue(sources=(var,), make=jnp.sum))

    def _learn(self, expr: Expr, value: LimitValue) -> None:
        self._known.setdefault(self.limits.normal_limit(expr, self.rows), value)

    def value(self, limits: Sequence[Expr]) -> LimitValue | None:
        """The largest of these limits; None where one of them cannot be computed here."""
        found = [self._one(limit) for limit in limits]
        known = [each for each in found if each is not None]
        if not known or len(known) < len(found):
            return None
        if len(known) == 1:
            return known[0]
        sources = tuple(source for each in known for source in each.sources)

        def largest(*values: Any) -> Any:
            ends: list[Any] = []
            for each in known:
                ends.append(each.make(*values[: len(each.sources)]))
                values = values[len(each.sources) :]
            return jnp.max(jnp.stack([as_limit(end) for end in ends]))

        return LimitValue(sources=sources, make=largest)

    def _one(self, limit: Expr) -> LimitValue | None:
        normal = self.limits.normal_limit(limit, self.rows)
        number = literal_value(normal)
        if number is not None:
            return LimitValue(sources=(), make=lambda: jnp.int32(min(number, self.rows)))
        return self._known.get(normal)


def _same(value: jax.Array) -> jax.Array:
    return value
