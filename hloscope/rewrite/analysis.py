"""The analysis of one program: its facts and demands, and the row-wise groups with dead tails in each of its bodies."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.cones import Body, Group
from hloscope.rewrite.demand import All, Below, Demand, Nothing, Reason, all_of
from hloscope.rewrite.demand_walk import Demands
from hloscope.rewrite.facts import find_facts
from hloscope.rewrite.kernels import Choice, choose_kernel, refusal
from hloscope.rewrite.limit_values import LimitValue, LimitValues
from hloscope.rewrite.limits import Limits
from hloscope.rewrite.marks import MARK, registered
from hloscope.rewrite.masks import guards_dead_rows_only, settled
from hloscope.rewrite.merging import merge_shard_maps
from hloscope.rewrite.order import needed_by
from hloscope.rewrite.ranges import Ranges
from hloscope.rewrite.saved_rows import Recomputed, find_recomputed

_RAGGED = ("ragged_dot_general", MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a body is.

    Attributes:
      path: the scopes around it and their named scopes, outermost first.
      executions: how often it runs in one step; None where a loop's trips are unknown.
    """

    path: tuple[str, ...]
    executions: int | None

    @property
    def phase(self) -> str:
        """forward, recompute or backward, by the names that jax gives to what it derives."""
        words = "/".join(self.path)
        if "rematted_computation" in words:
            return "recompute"
        return "backward" if "transpose(" in words else "forward"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """A group of row-wise work in a body.

    Attributes:
      body, place: where.
      group: the work.
      choice: the kernel for it.
      proof: why its tail is dead, by sink; or where the proof broke.
      limit: how to compute where rows end; None if refused.
      refusal: why it is left as it is, None if it can be replaced.
    """

    body: Any
    place: Place
    group: Group
    choice: Choice
    proof: tuple[Reason, ...]
    limit: LimitValue | None
    refusal: str | None

    @property
    def anchor(self) -> Any:
        """The equation that stands for the group: what makes its first result."""
        sink = self.group.sinks[0]
        return next(equation for equation in self.group.equations if sink in equation.outvars)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """A flat program with all that was found in it.

    Attributes:
      masked: gathers that fill dead rows only; they may clip.
      settled: selects of integers that return one operand in every row, each with it.
      recomputed: row numbers that loops save though they follow from others.
    """

    closed: Any
    demands: Demands
    found: tuple[Found, ...]
    masked: tuple[Any, ...]
    settled: tuple[tuple[Any, Any], ...]
    recomputed: tuple[Recomputed, ...]


def analyze(closed: Any) -> Program:
    """Flatten a program, prove what can be proved, and find its row-wise groups."""
    opaque = frozenset(registered())
    flat = merge_shard_maps(jaxprs.flatten(closed, opaque))
    facts = find_facts(flat, opaque)
    demands = Demands(facts=facts, limits=Limits(facts.symbols))
    body = jaxprs.opened(flat)
    demands.body(body, [all_of("it is a result of the step", None)] * len(body.outvars))
    places = list(bodies(body, Place(path=(), executions=1)))
    found = [each for inner, place in places for each in _in_body(inner, place, demands)]
    masked = [each for inner, _ in places for each in inner.eqns if guards_dead_rows_only(each, demands)]
    ranges = Ranges(demands.limits)
    one_sided = [
        (each, operand)
        for inner, _ in places
        for each in inner.eqns
        if (operand := settled(each, demands, ranges)) is not None
    ]
    return Program(
        closed=flat,
        demands=demands,
        found=tuple(found),
        masked=tuple(masked),
        settled=tuple(one_sided),
        recomputed=tuple(find_recomputed([inner for inner, _ in places], demands)),
    )


def bodies(body: Any, place: Place) -> Iterator[tuple[Any, Place]]:
    """A body and all inside it, each with its place; in registered calls nothing is known, nobody looks there."""
    yield body, place
    for equation in body.eqns:
        if jaxprs.call_name(equation) in registered():
            continue
        for inner in jaxprs.inner_jaxprs(equation):
            yield from bodies(jaxprs.opened(inner), _inside(equation, place))


def _inside(equation: Any, place: Place) -> Place:
    name = equation.primitive.name
    step = str(jaxprs.name_stack(equation))
    times: int | None = {"scan": equation.params.get("length"), "while": None, "cond": None}.get(name, 1)
    outside = place.executions
    return Place(
        path=(*place.path, *([step] if step else []), name),
        executions=None if outside is None or times is None else outside * times,
    )


def _in_body(body: Any, place: Place, demands: Demands) -> Iterator[Found]:
    for rows in _row_counts(body, demands):
        values = LimitValues(facts=demands.facts, limits=demands.limits, rows=rows)
        values.learn(list(body.invars))
        for equation in body.eqns:
            values.learn([var for var in equation.outvars if not jaxprs.is_dropped(var)])
        finder = _Finder(body=body, place=place, demands=demands, rows=rows, values=values)
        yield from finder.provable()
        yield from finder.broken()


def _row_counts(body: Any, demands: Demands) -> list[int]:
    """Rows of the ragged buffers of a body: some matrix with that many has a limit, or a reader that knows one."""
    found: dict[int, None] = {}
    for equation in body.eqns:
        ragged = equation.primitive.name in _RAGGED or jaxprs.call_name(equation) in registered()
        for atom in (*equation.invars, *equation.outvars):
            if jaxprs.is_literal(atom) or len(atom.aval.shape) != 2:
                continue
            if ragged or isinstance(demands.of.get(atom), Below):
                found[atom.aval.shape[0]] = None
    return list(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finder:
    body: Any
    place: Place
    demands: Demands
    rows: int
    values: LimitValues

    def provable(self) -> Iterator[Found]:
        """Groups whose tails are dead."""
        body = Body(jaxpr=self.body, rows=self.rows, dead=self.is_dead)
        cones = [cone for cone in body.cones() if isinstance(self.demand(cone.sink), Below)]
        for group in body.groups(cones, self.end_alike):
            limits = list(
                dict.fromkeys(limit for sink in group.sinks for limit, _ in self.below(sink).limits)
            )
            proof = tuple(reason for sink in group.sinks for _, reason in self.below(sink).limits[:1])
            value = self.values.value(limits)
            if value is None:
                why = (
                    "its limit is proved, but cannot be computed in this scope: hand the group sizes into it"
                )
                yield self.refused(group, proof, why)
            elif self.depends(value, group):
                yield self.refused(group, proof, "its limit is computed from its own result")
            else:
                yield self.found(group, proof, value)

    def broken(self) -> Iterator[Found]:
        """Groups on the same buffers whose tails are read, or may be."""
        body = Body(jaxpr=self.body, rows=self.rows, dead=self.is_read)
        for group in body.groups(body.cones(), lambda left, right: True):
            reasons = [demand.reason for sink in group.sinks if isinstance(demand := self.demand(sink), All)]
            if reasons:
                # The last step of the chain reads every row; those before only hand rows on to it.
                reader = reasons[0].lines()[-1]
                yield self.refused(group, tuple(reasons[:1]), f"its rows are read, or may be: {reader}")

    def demand(self, var: Any) -> Demand:
        return self.demands.of[var]

    def below(self, var: Any) -> Below:
        demand = self.demand(var)
        assert isinstance(demand, Below)
        return demand

    def is_dead(self, var: Any) -> bool:
        return isinstance(self.demand(var), (Below, Nothing))

    def is_read(self, var: Any) -> bool:
        """Whether every row of a value may be read, which is not a number for looking things up."""
        floating = str(var.aval.dtype).startswith(("float", "bfloat"))
        return isinstance(self.demand(var), All) and floating

    def end_alike(self, left: Any, right: Any) -> bool:
        normal = partial(self.demands.limits.normal_limit, rows=self.rows)
        ends = [{normal(limit) for limit, _ in self.below(var).limits} for var in (left, right)]
        return ends[0] == ends[1]

    def depends(self, value: LimitValue, group: Group) -> bool:
        needed = needed_by(value.sources, self.body.eqns)
        return any(
            id(equation) in needed
            for equation in self.body.eqns
            if not set(group.sinks).isdisjoint(equation.outvars)
        )

    def found(self, group: Group, proof: tuple[Reason, ...], value: LimitValue) -> Found:
        choice = choose_kernel(group)
        anchor = group.equations[-1]
        with jaxprs.context_of(anchor):
            why = refusal(group, choice)
        if why is not None and choice.name != "valid_rows":
            why = f"{choice.name} cannot take it: {why}"
        return Found(
            body=self.body,
            place=self.place,
            group=group,
            choice=choice,
            proof=proof,
            limit=value,
            refusal=why,
        )

    def refused(self, group: Group, proof: tuple[Reason, ...], why: str) -> Found:
        choice = choose_kernel(group)
        return Found(
            body=self.body, place=self.place, group=group, choice=choice, proof=proof, limit=None, refusal=why
        )
