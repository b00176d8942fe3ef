"""What comes before what in a jaxpr."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.rewrite import jaxprs


class CycleError(HloscopeError):
    """Equations need each other."""


def sorted_equations(equations: Sequence[Any], jaxpr: Any) -> list[Any]:
    """The equations in an order in which each finds its operands, as close to the given one as possible.

    Raises CycleError where there is none.
    """
    makers = {var: equation for equation in equations for var in equation.outvars}
    done: set[int] = set()
    started: set[int] = set()
    ordered: list[Any] = []
    for root in equations:
        pending = [(root, False)]
        while pending:
            equation, ready = pending.pop()
            if id(equation) in done:
                continue
            if ready:
                done.add(id(equation))
                ordered.append(equation)
                continue
            if id(equation) in started:
                raise CycleError("a rewritten jaxpr has a cycle")
            started.add(id(equation))
            pending.append((equation, True))
            needed = [makers[atom] for atom in operands(equation) if atom in makers]
            pending += [(maker, False) for maker in reversed(needed) if id(maker) not in done]
    _check_defined(ordered, jaxpr)
    return ordered


def operands(equation: Any) -> list[Any]:
    """The variables that an equation reads."""
    return [atom for atom in equation.invars if not jaxprs.is_literal(atom)]


def _check_defined(equations: Sequence[Any], jaxpr: Any) -> None:
    known = {*jaxpr.constvars, *jaxpr.invars}
    for equation in equations:
        if not known.issuperset(operands(equation)):
            raise HloscopeError(
                f"a rewritten jaxpr reads a value that nothing makes: {equation.primitive.name}"
            )
        known.update(equation.outvars)
    if not known.issuperset(atom for atom in jaxpr.outvars if not jaxprs.is_literal(atom)):
        raise HloscopeError("a rewritten jaxpr returns a value that nothing makes")


def reached_from(start: Any, equations: Sequence[Any]) -> set[int]:
    """Ids of the equations that depend on `start`, itself included; `equations` in order."""
    made = set(start.outvars)
    reached = {id(start)}
    for equation in equations:
        if not made.isdisjoint(operands(equation)):
            made.update(equation.outvars)
            reached.add(id(equation))
    return reached


def needed_by(variables: Sequence[Any], equations: Sequence[Any]) -> set[int]:
    """Ids of the equations that these variables depend on; `equations` in order."""
    wanted = {atom for atom in variables if not jaxprs.is_literal(atom)}
    needed: set[int] = set()
    for equation in reversed(equations):
        if not wanted.isdisjoint(equation.outvars):
            needed.add(id(equation))
            wanted.update(operands(equation))
    return needed


def needed_equations(graph: Sequence[Any], body: Any) -> list[Any]:
    """Those of a body that its results or effects need, in the given order, which need not be sorted."""
    effects = [entry for entry in graph if getattr(entry, "effects", None)]
    wanted = [*body.outvars, *(atom for entry in effects for atom in operands(entry))]
    # Whoever reads a value may stand before its maker: a closure, not one pass.
    makers = {var: entry for entry in graph for var in entry.outvars}
    needed = {id(entry) for entry in effects}
    pending = [atom for atom in wanted if not jaxprs.is_literal(atom)]
    while pending:
        maker = makers.get(pending.pop())
        if maker is not None and id(maker) not in needed:
            needed.add(id(maker))
            pending += operands(maker)
    return [entry for entry in graph if id(entry) in needed]
