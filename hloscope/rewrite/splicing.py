"""Putting kernels in the place of row-wise groups, in the bodies where they were found."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.analysis import Found, Program
from hloscope.rewrite.kernels import donations, replacement
from hloscope.rewrite.layouts import in_given_order
from hloscope.rewrite.masks import returning, without_mask
from hloscope.rewrite.order import needed_by, needed_equations, operands, sorted_equations
from hloscope.rewrite.saved_rows import Recomputed


def splice(program: Program, chosen: Sequence[Found]) -> Any:
    """The closed program with kernels in the place of these groups; all of them must be replaceable.

    Masks that only guard dead rows go too: beside a kernel each would be a pass over the buffer of its own. So do
    wraps of indices that are never negative, and stacks of row numbers that follow from others.
    """
    by_body: dict[int, list[Found]] = {}
    for found in chosen:
        by_body.setdefault(id(found.body), []).append(found)
    unmasked = {id(gather): without_mask(gather) for gather in program.masked}
    unmasked |= {id(select): returning(select, operand) for select, operand in program.settled}
    heads: dict[int, list[Recomputed]] = {}
    for each in program.recomputed:
        heads.setdefault(id(each.body), []).append(each)
    return _Rebuilder(by_body=by_body, unmasked=unmasked, heads=heads).rebuilt(program.closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rebuilder:
    """Rebuilds a program, body by body.

    Attributes:
      by_body: the groups to replace, by the id of their body.
      unmasked: equations to put in the place of others, by the id of these.
      heads: inputs that a body computes itself, by its id.
    """

    by_body: Mapping[int, list[Found]]
    unmasked: Mapping[int, Any]
    heads: Mapping[int, list[Recomputed]]

    def rebuilt(self, jaxpr: Any) -> Any:
        body = jaxprs.opened(jaxpr)
        equations = [self.equation(equation) for equation in body.eqns]
        if found := self.by_body.get(id(body)):
            equations = _spliced(body, equations, found)
        head = self.heads.get(id(body), [])
        computed = {each.variable for each in head}
        return jaxprs.rebuilt(
            jaxpr,
            equations=[*(made for each in head for made in each.equations()), *equations],
            inputs=[jaxprs.fresh(var) if var in computed else var for var in body.invars],
        )

    def equation(self, equation: Any) -> Any:
        if id(equation) in self.unmasked:
            return self.unmasked[id(equation)]
        inner = [self.rebuilt(each) for each in jaxprs.inner_jaxprs(equation)]
        return jaxprs.with_inner_jaxprs(equation, inner)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stand:
    """A group in the graph before its kernel is traced: an equation, as far as order goes."""

    found: Found
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]


def _spliced(body: Any, equations: list[Any], chosen: Sequence[Found]) -> list[Any]:
    replaced = {var for found in chosen for var in found.group.sinks}
    stands = {id(found): _stand(found) for found in chosen}
    graph: list[Any] = []
    for old, equation in zip(body.eqns, equations, strict=True):
        graph += [stands[id(found)] for found in chosen if found.anchor is old]
        if replaced.isdisjoint(old.outvars):
            graph.append(equation)
        elif not replaced.issuperset(old.outvars):
            # Other results of it are still read: those that were replaced get a name that nobody reads.
            graph.append(_without(equation, replaced))
    graph = sorted_equations(needed_equations(in_given_order(graph), body), body)
    final: list[Any] = []
    for entry in graph:
        final += _kernel(entry, graph, body) if isinstance(entry, _Stand) else [entry]
    return final


def _stand(found: Found) -> _Stand:
    assert found.limit is not None
    given = (*found.choice.operands, *found.group.uniform, *found.limit.sources)
    return _Stand(found=found, invars=given, outvars=found.group.sinks)


def _without(equation: Any, replaced: set[Any]) -> Any:
    outvars = [jaxprs.fresh(var) if var in replaced else var for var in equation.outvars]
    return equation.replace(outvars=outvars)


def _kernel(stand: _Stand, graph: Sequence[Any], body: Any) -> list[Any]:
    found = stand.found
    assert found.limit is not None
    given = [*found.choice.operands, *found.group.uniform]
    donate = donations(found.choice, _dying(stand, graph, body))
    function = replacement(found.group, found.choice, donate, len(given), found.limit.make)
    sources = [*given, *found.limit.sources]
    return jaxprs.traced_like(found.anchor, function, sources, found.group.sinks)


def _dying(stand: _Stand, graph: Sequence[Any], body: Any) -> set[Any]:
    """Operands that this body made and that nobody reads after the kernel, or at the same time."""
    before = needed_by(stand.invars, graph)
    kept = {atom for atom in (*body.invars, *body.constvars, *body.outvars) if not jaxprs.is_literal(atom)}
    dying = set(stand.found.choice.operands) - kept
    for entry in graph:
        if entry is not stand and id(entry) not in before:
            dying.difference_update(operands(entry))
    return dying
