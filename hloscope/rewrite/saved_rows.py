"""Row numbers that a loop saves though they follow from others that it saves too.

A layer that packs rows keeps for its gradient, say, the slot and the token of each row: two stacks of [layers, rows],
though the token is `where(row < limit, slot // top_k, tokens)`. Where one vector that a loop reads back is such
arithmetic on others that it reads back, it is computed again in the loop, bit for bit, and its stack is never made.
"""

# jax annotates these functions only in part, jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hloscope.rewrite import jaxprs
from hloscope.rewrite.demand_walk import Demands
from hloscope.rewrite.limit_values import LimitValues
from hloscope.rewrite.limits import is_row_number, scalar_of
from hloscope.rewrite.symbols import Expr, literal_value

# Scopes whose body runs once and gets the operands as its inputs.
_ENTERED = frozenset({"checkpoint", "remat", "remat2", "shard_map"})
_ELEMENTWISE: Mapping[str, Callable[..., jax.Array]] = {
    "add": lax.add,
    "and": lax.bitwise_and,
    "div": lax.div,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "ne": lax.ne,
    "not": lax.bitwise_not,
    "or": lax.bitwise_or,
    "rem": lax.rem,
    "sign": lax.sign,
    "sub": lax.sub,
}
# What is cheaper than reading a number per row back: a division with its corrections and a few selects.
_MOST_OPERATIONS = 24

Make = Callable[[Mapping[Any, Any]], Any]
# A mask, and what it says of the rows that count.
Side = tuple[Expr, bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recomputed:
    """An input of a body that the body can compute itself.

    Attributes:
      body: the body.
      variable: its input.
      reader: the first equation that reads it.
      sources: other inputs of the body that it is computed from.
      make: values of these to its value.
    """

    body: Any
    variable: Any
    reader: Any
    sources: tuple[Any, ...]
    make: Callable[..., Any]

    def equations(self) -> list[Any]:
        """What computes the variable, at the head of the body."""
        # What is the value of another input needs a name of its own: the copy lowers to nothing.
        return jaxprs.traced_like(
            self.reader, lambda *given: [jnp.copy(self.make(*given))], self.sources, [self.variable]
        )


def find_recomputed(bodies: Sequence[Any], demands: Demands) -> list[Recomputed]:
    """Saved row numbers that nobody needs to save, of the loops in these bodies of a flat program."""
    finder = _Finder(demands)
    loops = [equation for body in bodies for equation in body.eqns if equation.primitive.name == "scan"]
    return [found for loop in loops for found in finder.loop(loop)]


@dataclass(slots=True)
class _Finder:
    demands: Demands
    _dropped: set[Any] = field(default_factory=set[Any])
    _needed: set[Any] = field(default_factory=set[Any])

    def loop(self, scan: Any) -> Iterator[Recomputed]:
        first = sum(jaxprs.scan_counts(scan))
        body = jaxprs.opened(scan.params["jaxpr"])
        for stack, item in zip(scan.invars[first:], body.invars[first:], strict=True):
            saved = not jaxprs.is_literal(stack) and self.demands.facts.of[stack].op == "stack"
            if saved and _is_row_vector(item) and (found := self.unread([item], body)):
                for each in found:
                    self._dropped.add(each.variable)
                    self._needed.update(each.sources)
                yield from found

    def unread(self, variables: Sequence[Any], body: Any) -> list[Recomputed] | None:
        """What leaves nobody in a body who reads inputs that are one value; None if somebody would."""
        readers = [each for each in body.eqns if not _variables(each.invars).isdisjoint(variables)]
        if not readers or not _variables(body.outvars).isdisjoint(variables):
            return None
        here = [self.recomputed(variable, body, readers[0], variables) for variable in variables]
        known = [each for each in here if each is not None]
        if len(known) == len(here):
            return known
        found: list[Recomputed] = []
        for reader in readers:
            if reader.primitive.name not in _ENTERED:
                return None
            (scope,) = jaxprs.inner_jaxprs(reader)
            inner = jaxprs.opened(scope)
            pairs = zip(reader.invars, inner.invars, strict=True)
            entered = [var for atom, var in pairs if not jaxprs.is_literal(atom) and atom in variables]
            within = self.unread(entered, inner)
            if within is None:
                return None
            found += within
        return found

    def recomputed(self, variable: Any, body: Any, reader: Any, alike: Sequence[Any]) -> Recomputed | None:
        """How to compute an input from others than those that are the same value; None if it cannot be, or is read."""
        if variable in self._needed:
            return None
        expr = self.demands.facts.of[variable]
        known = [var for var in body.invars if var not in alike and var not in self._dropped]
        values = _Values(demands=self.demands, known=known, rows=expr.shape[0])
        make = values.make(expr, ())
        if make is None:
            return None
        sources = tuple(values.sources)
        return Recomputed(
            body=body,
            variable=variable,
            reader=reader,
            sources=sources,
            make=lambda *given: make(dict(zip(sources, given, strict=True))),
        )


def _is_row_vector(variable: Any) -> bool:
    return len(variable.aval.shape) == 1 and jnp.issubdtype(variable.aval.dtype, jnp.integer)


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {atom for atom in atoms if not jaxprs.is_literal(atom)}


@dataclass(slots=True, kw_only=True)
class _Values:
    """Vectors of row numbers as arithmetic on the known inputs of a body.

    Attributes:
      sources: the inputs that were needed so far.
      operations: how many there were.
    """

    demands: Demands
    known: Sequence[Any]
    rows: int
    sources: dict[Any, None] = field(default_factory=dict[Any, None])
    operations: int = 0

    def make(self, expr: Expr, sides: tuple[Side, ...]) -> Make | None:
        """How to compute an expression in the rows where masks take these sides; None if it cannot be.

        Scalars are vectors that are filled with them.
        """
        scalar = scalar_of(expr)
        if scalar is not None:
            expr = self.demands.limits.normal(scalar)
        number = literal_value(expr)
        if number is not None:
            return lambda given: jnp.full((self.rows,), number, expr.dtype)
        if expr.shape and (var := self.known_as(expr, sides)) is not None:
            self.sources[var] = None
            return lambda given: given[var]
        self.operations += 1
        # At once: arithmetic may be deep, and reads what it shares again and again.
        if self.operations > _MOST_OPERATIONS:
            return None
        if expr.op == "iota":
            return lambda given: lax.iota(expr.dtype, self.rows)
        if expr.op == "lt":
            return self.row_below(expr)
        if expr.op == "select_n" and len(expr.args) == 3:
            return self.select(expr, sides)
        operation = _ELEMENTWISE.get(expr.op)
        return None if operation is None else self.elementwise(operation, expr, sides)

    def known_as(self, expr: Expr, sides: tuple[Side, ...]) -> Any | None:
        """An input that has the value in these rows: it is the value, or a select that takes it there."""
        of = self.demands.facts.of
        for var in self.known:
            value = of[var]
            if value is expr:
                return var
            if value.op == "select_n" and len(value.args) == 3:
                mask, when_false, when_true = value.args
                if any(
                    mask is other and (when_true if side else when_false) is expr for other, side in sides
                ):
                    return var
        return None

    def select(self, expr: Expr, sides: tuple[Side, ...]) -> Make | None:
        mask, when_false, when_true = expr.args
        made = (
            self.make(mask, sides),
            self.make(when_false, (*sides, (mask, False))),
            self.make(when_true, (*sides, (mask, True))),
        )
        which, no, yes = made
        if which is None or no is None or yes is None:
            return None
        return lambda given: lax.select_n(which(given), no(given), yes(given))

    def row_below(self, mask: Expr) -> Make | None:
        """`row < limit`, from whatever the limit can be computed from."""
        row, bound = mask.args
        limit = scalar_of(bound)
        if limit is None or not is_row_number(row):
            return None
        values = LimitValues(facts=self.demands.facts, limits=self.demands.limits, rows=self.rows)
        values.learn(self.known)
        value = values.value([limit])
        if value is None:
            return None
        self.sources.update(dict.fromkeys(value.sources))
        return lambda given: (
            lax.iota(row.dtype, self.rows) < value.make(*(given[each] for each in value.sources))
        )

    def elementwise(
        self, operation: Callable[..., jax.Array], expr: Expr, sides: tuple[Side, ...]
    ) -> Make | None:
        parts = [self.make(arg, sides) for arg in expr.args]
        made = [part for part in parts if part is not None]
        if len(made) < len(parts):
            return None
        return lambda given: operation(*(part(given) for part in made))
