"""Two `shard_map`s of which the second only reads what the first returns become one.

Differentiation cuts a `shard_map` in two, what is recomputed and the backward pass, and passes every value that
both need across: wide float32 intermediates among them. In one body all of it is in sight, and what is cheap
can be computed again where it is read.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.order import operands, reached_from, sorted_equations


def merge_shard_maps(jaxpr: Any) -> Any:
    """The program with neighbouring shard_maps merged, in all its scopes; it must be flat (`jaxprs.flatten`)."""
    body = jaxprs.opened(jaxpr)
    equations = [
        jaxprs.with_inner_jaxprs(
            equation, [merge_shard_maps(inner) for inner in jaxprs.inner_jaxprs(equation)]
        )
        for equation in body.eqns
    ]
    pair = _mergeable(equations)
    while pair is not None:
        first, second = pair
        others = [equation for equation in equations if equation is not first and equation is not second]
        read = {atom for equation in others for atom in operands(equation)}
        read.update(atom for atom in body.outvars if not jaxprs.is_literal(atom))
        merged = _merged(first, second, read)
        rest = [merged if equation is second else equation for equation in equations if equation is not first]
        equations = sorted_equations(rest, body)
        pair = _mergeable(equations)
    return jaxprs.rebuilt(jaxpr, equations=equations)


def _mergeable(equations: Sequence[Any]) -> tuple[Any, Any] | None:
    maps = [equation for equation in equations if equation.primitive.name == "shard_map"]
    for index, first in enumerate(maps):
        for second in maps[index + 1 :]:
            if _alike(first, second) and _passes_on(first, second) and not _detour(equations, first, second):
                return first, second
    return None


def _alike(first: Any, second: Any) -> bool:
    own = {"jaxpr", "in_specs", "out_specs", "debug_info"}
    kept = [{key: value for key, value in each.params.items() if key not in own} for each in (first, second)]
    return kept[0] == kept[1] and not first.effects and not second.effects


def _passes_on(first: Any, second: Any) -> bool:
    """The second takes something from the first, all of it just as the first gives it."""
    given = dict(zip(first.outvars, _results(first), strict=True))
    taken = [
        (given[atom], (spec, inner.aval))
        for atom, spec, inner in zip(
            second.invars, second.params["in_specs"], _inner(second).invars, strict=True
        )
        if not jaxprs.is_literal(atom) and atom in given
    ]
    return bool(taken) and all(
        left[0] == right[0] and jaxprs.same_type(left[1], right[1]) for left, right in taken
    )


def _results(equation: Any) -> list[tuple[Any, Any]]:
    """Spec and type of each result."""
    return [
        (spec, inner.aval)
        for spec, inner in zip(equation.params["out_specs"], _inner(equation).outvars, strict=True)
    ]


def _operands(equation: Any) -> dict[tuple[Any, str], Any]:
    """What the inside calls each operand, by the operand and its spec."""
    triples = zip(equation.invars, equation.params["in_specs"], _inner(equation).invars, strict=True)
    return {(atom, str(spec)): inner for atom, spec, inner in triples if not jaxprs.is_literal(atom)}


def _detour(equations: Sequence[Any], first: Any, second: Any) -> bool:
    """Whether something outside both is between them: it reads the first, and the second reads it."""
    others = [equation for equation in equations if equation is not second]
    behind = reached_from(first, others)
    behind.remove(id(first))
    made = {var for equation in others if id(equation) in behind for var in equation.outvars}
    return any(not jaxprs.is_literal(atom) and atom in made for atom in second.invars)


def _inner(equation: Any) -> Any:
    return jaxprs.opened(equation.params["jaxpr"])


def _merged(first: Any, second: Any, read: Collection[Any]) -> Any:
    """Both in one; of what they return only what others read."""
    first_body, second_body = _inner(first), _inner(second)
    passed = dict(zip(first.outvars, first_body.outvars, strict=True))
    names: dict[Any, Any] = {}
    kept: list[int] = []
    given = _operands(first)
    for position, (atom, inner) in enumerate(zip(second.invars, second_body.invars, strict=True)):
        spec = second.params["in_specs"][position]
        if not jaxprs.is_literal(atom) and atom in passed:
            names[inner] = passed[atom]
        elif not jaxprs.is_literal(atom) and (same := given.get((atom, str(spec)))) is not None:
            names[inner] = same
        else:
            kept.append(position)

    def renamed(atom: Any) -> Any:
        return atom if jaxprs.is_literal(atom) else names.get(atom, atom)

    stack = _common(jaxprs.name_stack(first), jaxprs.name_stack(second))
    equations = [
        jaxprs.under(jaxprs.name_stack(owner)[len(stack) :], equation)
        for owner, body in ((first, first_body), (second, second_body))
        for equation in body.eqns
    ]
    equations = [each.replace(invars=[renamed(atom) for atom in each.invars]) for each in equations]
    params = dict(second.params)
    params["in_specs"] = (*first.params["in_specs"], *(second.params["in_specs"][i] for i in kept))
    inner_results = [*first_body.outvars, *map(renamed, second_body.outvars)]
    results = [*zip(first.outvars, first.params["out_specs"], strict=True)]
    results += zip(second.outvars, second.params["out_specs"], strict=True)
    wanted = [position for position, (var, _) in enumerate(results) if var in read]
    params["out_specs"] = tuple(results[position][1] for position in wanted)
    params["jaxpr"] = jaxprs.rebuilt(
        second.params["jaxpr"],
        equations=equations,
        inputs=[*first_body.invars, *(second_body.invars[i] for i in kept)],
        outputs=[inner_results[position] for position in wanted],
    )
    merged = second.replace(
        invars=[*first.invars, *(second.invars[i] for i in kept)],
        outvars=[results[position][0] for position in wanted],
        params=params,
    )
    return jaxprs.with_name_stack(merged, stack)


def _common(left: Any, right: Any) -> Any:
    size = 0
    while size < min(len(left), len(right)) and left.stack[size] == right.stack[size]:
        size += 1
    return left[:size]
