"""Which rows of a value can influence a result: what a demand is, and how demands add up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hloscope.rewrite.symbols import Expr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reason:
    """A step of a proof.

    Attributes:
      what: in words.
      where: `file:line` of the equation, None if jax does not know.
      then: what the step rests on, further towards the results.
    """

    what: str
    where: str | None
    then: Reason | None = None

    def lines(self) -> list[str]:
        """The chain, one line a step."""
        found: list[str] = []
        step: Reason | None = self
        while step is not None:
            found.append(step.what + (f"  ({step.where})" if step.where else ""))
            step = step.then
        return found


@dataclass(frozen=True, slots=True)
class Nothing:
    """No row influences any result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """Rows below each of these limits may; rows that are below none of them do not.

    `limits` has each limit with the reason for it.
    """

    limits: tuple[tuple[Expr, Reason], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """A demand on the parts that a value is made of: shards of a shard_map, items of a loop."""

    frame: Hashable
    demand: Demand


@dataclass(frozen=True, slots=True, kw_only=True)
class All:
    """Every row may; `reason` says who reads them."""

    reason: Reason


Demand = Nothing | Below | Within | All
NOTHING = Nothing()


def below(limit: Expr, reason: Reason) -> Below:
    """Rows below one limit."""
    return Below(limits=((limit, reason),))


def join(demands: Iterable[Demand]) -> Demand:
    """What several readers demand together."""
    joined: Demand = NOTHING
    for demand in demands:
        joined = _join(joined, demand)
    return joined


def _join(left: Demand, right: Demand) -> Demand:
    if isinstance(left, Nothing) or left is right:
        return right
    if isinstance(right, Nothing) or isinstance(left, All):
        return left
    if isinstance(right, All):
        return right
    if isinstance(left, Below) and isinstance(right, Below):
        known = {limit for limit, _ in left.limits}
        return Below(limits=(*left.limits, *(each for each in right.limits if each[0] not in known)))
    if isinstance(left, Within) and isinstance(right, Within) and left.frame == right.frame:
        return Within(frame=left.frame, demand=_join(left.demand, right.demand))
    return All(reason=Reason(what="two readers take the value apart in different ways", where=None))


def because(demand: Demand, what: str, where: str | None) -> Demand:
    """The demand with one step more in front of its proof."""
    match demand:
        case All():
            return All(reason=Reason(what=what, where=where, then=demand.reason))
        case Below():
            return Below(
                limits=tuple(
                    (limit, Reason(what=what, where=where, then=reason)) for limit, reason in demand.limits
                )
            )
        case _:
            return demand


def all_of(what: str, where: str | None) -> All:
    """A reader that may read every row."""
    return All(reason=Reason(what=what, where=where))
