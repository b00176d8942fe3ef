"""Symbolic values of integers and booleans: what is needed to prove where the rows of a buffer end.

An `Expr` says how a value came about, in terms of values nobody knows ("atoms"). Equal expressions are one
object, so that comparing them costs nothing. Values keep their identity across borders: what a `shard_map`
returns and another takes again with the same spec, what one loop stacks and another reads item by item.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

Shape = tuple[int, ...]


def sums_exactly(dtype: str) -> bool:
    """Whether numbers of rows add up in a type without wrapping around."""
    return np.issubdtype(dtype, np.integer) and np.iinfo(dtype).bits >= 32


def counts_to(dtype: str, largest: int) -> bool:
    """Whether a type holds all numbers from 0 to `largest`."""
    return np.issubdtype(dtype, np.integer) and largest <= np.iinfo(dtype).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expr:
    """One symbolic value; made by `Symbols` only.

    Attributes:
      op: the name of the primitive, or atom, literal, shard, stack, at.
      args: the operands.
      params: what else decides the value, hashable.
      shape, dtype: of the value; the dtype by name.
      loops: the loops (and branches) one of whose passes the value belongs to.
    """

    op: str
    args: tuple[Expr, ...]
    params: Hashable
    shape: Shape
    dtype: str
    loops: frozenset[int]

    def __repr__(self) -> str:
        inside = ", ".join(
            [repr(arg) for arg in self.args] + ([] if self.params is None else [str(self.params)])
        )
        return f"{self.op}({inside})"

    def walk(self) -> Iterator[Expr]:
        """This expression and all below it, each once."""
        seen: set[Expr] = set()
        pending: list[Expr] = [self]
        while pending:
            expr = pending.pop()
            if expr not in seen:
                seen.add(expr)
                yield expr
                pending += expr.args


NO_LOOPS: frozenset[int] = frozenset()


@dataclass(slots=True)
class Symbols:
    """Makes expressions, each once."""

    _known: dict[Hashable, Expr] = field(default_factory=dict[Hashable, Expr])
    _moved: dict[tuple[int, int], dict[Expr, Expr]] = field(
        default_factory=dict[tuple[int, int], dict[Expr, Expr]]
    )
    _sources: dict[Hashable, Expr] = field(default_factory=dict[Hashable, Expr])

    def make(
        self,
        op: str,
        args: tuple[Expr, ...] = (),
        params: Hashable = None,
        *,
        shape: Shape,
        dtype: str,
        loops: frozenset[int] | None = None,
    ) -> Expr:
        """The expression; `loops` are those of its operands unless told."""
        if loops is None:
            loops = NO_LOOPS.union(*(arg.loops for arg in args))
        key = (op, args, params, shape, dtype)
        if (found := self._known.get(key)) is None:
            found = Expr(op=op, args=args, params=params, shape=shape, dtype=dtype, loops=loops)
            self._known[key] = found
        return found

    def literal(self, value: int, dtype: str = "int32") -> Expr:
        """A known scalar."""
        return self.make("literal", params=int(value), shape=(), dtype=dtype)

    def atom(self, name: Hashable, shape: Shape, dtype: str, loops: frozenset[int]) -> Expr:
        """A value that nothing is known of; one `name`, one value in each pass of its loops."""
        return self.make("atom", params=name, shape=shape, dtype=dtype, loops=loops)

    def moved_rows(self, name: Hashable, source: Expr) -> None:
        """Remember that every item of the atom `name` is some item of another value."""
        self._sources[name] = source

    def source_of(self, expr: Expr) -> Expr | None:
        """The value whose items are those of an atom, in whatever loop it is looked at; None if nobody knows."""
        if expr.op != "atom":
            return None
        name = expr.params
        while isinstance(name, tuple) and cast("tuple[Any, ...]", name)[:1] == ("at",):
            name = cast("tuple[Hashable, ...]", name)[3]
        return self._sources.get(cast("Hashable", name))

    def binary(self, op: str, left: Expr, right: Expr) -> Expr:
        """A scalar operation on two scalars."""
        return self.make(op, (left, right), shape=left.shape, dtype=left.dtype)

    def total(self, vector: Expr) -> Expr:
        """The sum of a vector, in whose type it does not wrap around."""
        return self.make("reduce_sum", (vector,), (("axes", (0,)),), shape=(), dtype=vector.dtype)

    def item_of(self, stack: Expr, reader: int, *, shape: Shape, dtype: str) -> Expr:
        """The item of any array that a pass of loop `reader` sees; its number is the pass's own."""
        return self.make("item_of", (stack,), reader, shape=shape, dtype=dtype, loops=stack.loops | {reader})

    def item_in(self, expr: Expr, source: int, reader: int) -> Expr:
        """What loop `source` stacked, as loop `reader` sees it when both are at the same item."""
        moved = self._moved.setdefault((source, reader), {})
        for each in inside_out(expr, moved):
            moved[each] = self._item_in(each, source, reader, moved)
        return moved[expr]

    def _item_in(self, expr: Expr, source: int, reader: int, moved: Mapping[Expr, Expr]) -> Expr:
        if source not in expr.loops:
            return expr
        if expr.op == "item_of" and expr.params == source:
            return self.item_of(expr.args[0], reader, shape=expr.shape, dtype=expr.dtype)
        if expr.args:
            args = tuple(moved[arg] for arg in expr.args)
            return self.make(expr.op, args, expr.params, shape=expr.shape, dtype=expr.dtype)
        name, loops = ("at", source, reader, expr.params), (expr.loops - {source}) | {reader}
        return self.atom(name, expr.shape, expr.dtype, loops)

    def item_back(self, expr: Expr, source: int, reader: int) -> Expr | None:
        """The inverse of `item_in`; None for a value that is more than an item of what `source` stacked."""
        if reader not in expr.loops:
            return expr
        if expr.op == "item_of" and expr.params == reader:
            return self.item_of(expr.args[0], source, shape=expr.shape, dtype=expr.dtype)
        if not expr.args:
            name = cast("tuple[Any, ...]", expr.params)
            if expr.op != "atom" or name[:3] != ("at", source, reader):
                return None
            return self.atom(name[3], expr.shape, expr.dtype, (expr.loops - {reader}) | {source})
        args = [self.item_back(arg, source, reader) for arg in expr.args]
        known = tuple(arg for arg in args if arg is not None)
        if len(known) < len(args):
            return None
        return self.make(expr.op, known, expr.params, shape=expr.shape, dtype=expr.dtype)


def inside_out(expr: Expr, known: Container[Expr]) -> Iterator[Expr]:
    """The expression and all below it that is not known, each once and after its operands.

    Whoever asks makes each known before the next. Arithmetic may be deeper than Python's stack.
    """
    pending = [expr]
    while pending:
        if pending[-1] in known:
            pending.pop()
        elif missing := [arg for arg in pending[-1].args if arg not in known]:
            pending += missing
        else:
            yield pending[-1]


def literal_value(expr: Expr) -> int | None:
    """The value of a known scalar, or of an array that is filled with one."""
    while expr.op in ("broadcast_in_dim", "reshape"):
        (expr,) = expr.args
    return cast("int", expr.params) if expr.op == "literal" else None


def parameter(expr: Expr, name: str) -> Any:
    """One of the named parameters of an operation."""
    return dict(cast("tuple[tuple[str, Any], ...]", expr.params))[name]
