"""Demands backward through a whole program, across all scopes."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.demand import (
    NOTHING,
    All,
    Below,
    Demand,
    Nothing,
    Within,
    all_of,
    because,
    join,
)
from hloscope.rewrite.demand_rules import Reading, read_rows
from hloscope.rewrite.facts import Facts, frame
from hloscope.rewrite.limits import Limits

# A loop whose demands have not settled after so many passes reads everything.
_PASSES = 8


@dataclass(slots=True)
class Demands:
    """Which rows of each variable can influence a result.

    Attributes:
      facts, limits: what the proofs rest on.
      of: by variable.
    """

    facts: Facts
    limits: Limits
    of: dict[Any, Demand] = field(default_factory=dict[Any, Demand])

    def body(self, jaxpr: Any, results: Sequence[Demand]) -> list[Demand]:
        """Demands on a body's inputs, given those on its results; constants of its own are not among them."""
        for equation in jaxpr.eqns:
            self.of.update(dict.fromkeys(equation.outvars, NOTHING))
        self.of.update(dict.fromkeys((*jaxpr.constvars, *jaxpr.invars), NOTHING))
        for atom, demand in zip(jaxpr.outvars, results, strict=True):
            self.add(atom, demand)
        for equation in reversed(jaxpr.eqns):
            given = [self.of[var] for var in equation.outvars]
            for atom, demand in zip(equation.invars, self.equation(equation, given), strict=True):
                self.add(atom, demand)
        return [self.of[var] for var in jaxpr.invars]

    def add(self, atom: Any, demand: Demand) -> None:
        """One reader more."""
        if not jaxprs.is_literal(atom):
            self.of[atom] = join((self.of[atom], demand))

    def equation(self, equation: Any, results: Sequence[Demand]) -> list[Demand]:
        """Demands on an equation's operands."""
        name = equation.primitive.name
        scopes = jaxprs.inner_jaxprs(equation)
        own = jaxprs.call_name(equation) in self.facts.opaque
        if not scopes or own:
            return read_rows(
                Reading(equation=equation, results=results, facts=self.facts, limits=self.limits)
            )
        match name:
            case "scan":
                return self.scan(equation, results)
            case "while":
                return self.while_loop(equation, results)
            case "cond":
                return self.cond(equation, results)
            case "shard_map":
                return self.shard_map(equation, results)
            case _:
                return self.body(jaxprs.opened(scopes[0]), results)

    def scan(self, equation: Any, results: Sequence[Demand]) -> list[Demand]:
        """A scan: what its passes hand on is demanded as each of them demands it."""
        params, number = equation.params, self.facts.loop[id(equation)]
        consts, carries = jaxprs.scan_counts(equation)
        body, where = jaxprs.opened(params["jaxpr"]), jaxprs.source_line(equation)
        stacked = [self.item_demand(demand, number, where) for demand in results[carries:]]

        def once(carried: Sequence[Demand]) -> list[Demand]:
            return self.body(body, [*carried, *stacked])

        inputs = self.settled(once, results[:carries], slice(consts, consts + carries), number, where)
        fixed = [self.leaving(demand, number, where) for demand in inputs[: consts + carries]]
        # A loop may have no pass at all: then what it carries is its result.
        fixed[consts:] = [join(pair) for pair in zip(results[:carries], fixed[consts:], strict=True)]
        items = [
            self.items_of(atom, demand, number, where)
            for atom, demand in zip(
                equation.invars[consts + carries :], inputs[consts + carries :], strict=True
            )
        ]
        return [*fixed, *items]

    def settled(
        self, once: Any, final: Sequence[Demand], carried: slice, number: int, where: str | None
    ) -> list[Demand]:
        """The demands on a loop body's inputs when those on what it carries no longer grow."""
        current = list(final)
        for _ in range(_PASSES):
            inputs: list[Demand] = once(current)
            leaving = [self.leaving(demand, number, where) for demand in inputs[carried]]
            grown = [join((old, new)) for old, new in zip(current, leaving, strict=True)]
            if all(map(_covers, current, grown)):
                return inputs
            current = grown
        return once([all_of("a loop carries it on, and its demands do not settle", where) for _ in final])

    def item_demand(self, demand: Demand, number: int, where: str | None) -> Demand:
        """The demand on one item of a stack."""
        if isinstance(demand, Within) and demand.frame == ("items", number):
            return demand.demand
        if isinstance(demand, Nothing):
            return demand
        return _whole(demand, "a loop stacks it, and the stack is read", where)

    def items_of(self, atom: Any, demand: Demand, reader: int, where: str | None) -> Demand:
        """The demand on a stack of which a loop demands this of each item."""
        if isinstance(demand, (Nothing, All)):
            return demand
        value = None if jaxprs.is_literal(atom) else self.facts.of[atom]
        if value is None or value.op != "stack":
            return all_of("a loop reads it item by item, and no loop has stacked it", where)
        source: Any = value.params
        back = self.moved_back(demand, source[0], reader)
        if back is None:
            return all_of("a loop reads its items up to a limit that is not stacked beside them", where)
        return Within(frame=("items", source[0]), demand=back)

    def moved_back(self, demand: Demand, source: int, reader: int) -> Demand | None:
        """The demand in terms of the loop that stacked the value."""
        if isinstance(demand, Within):
            inner = self.moved_back(demand.demand, source, reader)
            return None if inner is None else Within(frame=demand.frame, demand=inner)
        if not isinstance(demand, Below):
            return demand
        moved = [
            (self.facts.symbols.item_back(limit, source, reader), reason) for limit, reason in demand.limits
        ]
        known = tuple((limit, reason) for limit, reason in moved if limit is not None)
        return Below(limits=known) if len(known) == len(moved) else None

    def leaving(self, demand: Demand, number: int, where: str | None) -> Demand:
        """A demand seen from outside a loop or branch: its limits must not be values of one pass."""
        inner = demand
        while isinstance(inner, Within):
            inner = inner.demand
        if isinstance(inner, Below) and any(number in limit.loops for limit, _ in inner.limits):
            return all_of("a limit that is only known inside a loop or a branch ends it there", where)
        return demand

    def while_loop(self, equation: Any, results: Sequence[Demand]) -> list[Demand]:
        """A while loop; its condition reads everything it is given."""
        params, number = equation.params, self.facts.loop[id(equation)]
        condition, consts = params["cond_nconsts"], params["body_nconsts"]
        where = jaxprs.source_line(equation)
        test, body = jaxprs.opened(params["cond_jaxpr"]), jaxprs.opened(params["body_jaxpr"])
        tested = self.body(test, [all_of("decides how long a loop runs", where)])

        def once(carried: Sequence[Demand]) -> list[Demand]:
            return self.body(body, carried)

        final = [
            join((demand, self.leaving(tests, number, where)))
            for demand, tests in zip(results, tested[condition:], strict=True)
        ]
        inputs = self.settled(once, final, slice(consts, len(body.invars)), number, where)
        carried = [join(pair) for pair in zip(final, inputs[consts:], strict=True)]
        outside = [*tested[:condition], *inputs[:consts], *carried]
        return [self.leaving(demand, number, where) for demand in outside]

    def cond(self, equation: Any, results: Sequence[Demand]) -> list[Demand]:
        """A conditional: any branch may be taken."""
        number, where = self.facts.loop[id(equation)], jaxprs.source_line(equation)
        branches = [self.body(jaxprs.opened(branch), results) for branch in jaxprs.inner_jaxprs(equation)]
        joined = [
            join(self.leaving(demand, number, where) for demand in demands)
            for demands in zip(*branches, strict=True)
        ]
        return [all_of("decides which branch runs", where), *joined]

    def shard_map(self, equation: Any, results: Sequence[Demand]) -> list[Demand]:
        """A shard_map: outside, demands are on the shards."""
        params, where = equation.params, jaxprs.source_line(equation)
        given = [
            self.shard_demand(demand, frame(equation, spec), where)
            for demand, spec in zip(results, params["out_specs"], strict=True)
        ]
        inputs = self.body(jaxprs.opened(params["jaxpr"]), given)
        return [
            demand
            if isinstance(demand, (Nothing, All))
            else Within(frame=frame(equation, spec), demand=demand)
            for demand, spec in zip(inputs, params["in_specs"], strict=True)
        ]

    def shard_demand(self, demand: Demand, own: Hashable, where: str | None) -> Demand:
        """The demand on one device's shard of a result."""
        if isinstance(demand, Within) and demand.frame == own:
            return demand.demand
        return (
            demand
            if isinstance(demand, Nothing)
            else _whole(demand, "it leaves a shard_map and is read", where)
        )


def _whole(demand: Demand, what: str, where: str | None) -> Demand:
    return because(demand, what, where) if isinstance(demand, All) else all_of(what, where)


def _covers(old: Demand, new: Demand) -> bool:
    """Whether a demand has not grown."""
    if isinstance(old, Below) and isinstance(new, Below):
        return len(old.limits) == len(new.limits)
    if isinstance(old, Within) and isinstance(new, Within):
        return _covers(old.demand, new.demand)
    return type(old) is type(new)
