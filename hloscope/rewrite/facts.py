"""What every integer and boolean of a program is, symbolically: forward through the whole step, across all borders.

Values of other types are atoms. Loops give an atom per pass to what changes from pass to pass; what a loop
stacks can be read by another loop item by item, and is the same value there. What `shard_map` returns and another
`shard_map` over the same mesh takes with the same spec is, on each device, the same value.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from hloscope.rewrite import jaxprs
from hloscope.rewrite.symbols import Expr, Symbols

# Their result is their operand, as far as proofs go.
_IDENTITIES = frozenset({"copy", "copy_p", "name", "pvary", "pcast", "stop_gradient", "optimization_barrier"})
# Decided by operands and the parameters named here.
_OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "add": (),
    "and": (),
    "broadcast_in_dim": ("broadcast_dimensions",),
    "concatenate": ("dimension",),
    "convert_element_type": ("new_dtype",),
    "cumsum": ("axis", "reverse"),
    "div": (),
    "eq": (),
    "expand_dims": ("dimensions",),
    "ge": (),
    "gt": (),
    "iota": ("dimension",),
    "le": (),
    "lt": (),
    "max": (),
    "min": (),
    "mul": (),
    "ne": (),
    "not": (),
    "or": (),
    "pad": ("padding_config",),
    "reduce_sum": ("axes",),
    "rem": (),
    "reshape": (),
    "select_n": (),
    "sign": (),
    "slice": ("start_indices", "limit_indices", "strides"),
    "squeeze": ("dimensions",),
    "sub": (),
}
_INLINE_SCOPES = frozenset({"checkpoint", "remat", "remat2", "jit", "pjit", "closed_call", "core_call"})


@dataclass(slots=True)
class Facts:
    """The symbolic value of each variable.

    Attributes:
      symbols: makes them.
      of: by variable.
      loop: the number of each scan, while and cond, by the id of its equation.
      opaque: names of calls whose bodies are not looked into.
    """

    symbols: Symbols = field(default_factory=Symbols)
    of: dict[Any, Expr] = field(default_factory=dict[Any, Expr])
    loop: dict[int, int] = field(default_factory=dict[int, int])
    opaque: frozenset[str] = frozenset()
    _numbers: Any = field(default_factory=count)

    def value(self, atom: Any) -> Expr:
        """The symbolic value of a variable or literal."""
        if jaxprs.is_literal(atom):
            return self._literal(atom)
        return self.of[atom]

    def _literal(self, atom: Any) -> Expr:
        dtype, shape = _kind(atom)
        value = np.asarray(atom.val)
        if dtype in _EXACT and not shape and value.size == 1:
            return self.symbols.literal(int(value), dtype)
        return self.symbols.atom(("literal", id(atom)), shape, dtype, frozenset())

    def atom(self, variable: Any, loops: frozenset[int]) -> Expr:
        """A value that nothing is known of."""
        dtype, shape = _kind(variable)
        return self.symbols.atom(("var", id(variable)), shape, dtype, loops)

    def learn_constants(self, closed: Any) -> None:
        """Facts of a jaxpr's own constants: vectors that count rows, or that are filled with one number."""
        variables = jaxprs.opened(closed).constvars
        values = jaxprs.constants(closed) or [None] * len(variables)
        for var, value in zip(variables, values, strict=True):
            self.of[var] = self._constant(var, value) or self.atom(var, frozenset())

    def _constant(self, var: Any, value: Any) -> Expr | None:
        dtype, shape = _kind(var)
        if value is None or dtype not in _EXACT or len(shape) > 1 or 0 in shape:
            return None
        array = np.asarray(value)
        if not shape:
            return self.symbols.literal(int(array), dtype)
        if np.array_equal(array, np.arange(array.size)):
            return self.symbols.make("iota", params=(("dimension", 0),), shape=shape, dtype=dtype)
        if (array == array[0]).all():
            filling = self.symbols.literal(int(array[0]), dtype)
            params = (("broadcast_dimensions", ()),)
            return self.symbols.make("broadcast_in_dim", (filling,), params, shape=shape, dtype=dtype)
        return None


_EXACT = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})


def _kind(atom: Any) -> tuple[str, tuple[int, ...]]:
    aval = atom.aval
    shape = tuple(getattr(aval, "shape", ()))
    return str(getattr(aval, "dtype", "none")), shape


def find_facts(closed: Any, opaque: Collection[str] = ()) -> Facts:
    """Facts of all variables of a flat program; calls named in `opaque` are not looked into."""
    facts = Facts(opaque=frozenset(opaque))
    body = jaxprs.opened(closed)
    facts.learn_constants(closed)
    for var in body.invars:
        facts.of[var] = facts.atom(var, frozenset())
    _Walk(facts).body(body, frozenset())
    return facts


class _Walk:
    def __init__(self, facts: Facts) -> None:
        self.facts, self.symbols = facts, facts.symbols

    def body(self, jaxpr: Any, loops: frozenset[int]) -> list[Expr]:
        """Walk a body whose inputs are known; returns the values of its results."""
        for equation in jaxpr.eqns:
            values = self.equation(equation, loops)
            self.facts.of.update(zip(equation.outvars, values, strict=True))
        return [self.facts.value(atom) for atom in jaxpr.outvars]

    def enter(self, jaxpr: Any, given: Sequence[Expr | None], loops: frozenset[int]) -> list[Expr]:
        """Walk a scope; None for inputs that nothing is known of."""
        inner = jaxprs.opened(jaxpr)
        self.facts.learn_constants(jaxpr)
        for var, value in zip(inner.invars, given, strict=True):
            self.facts.of[var] = self.facts.atom(var, loops) if value is None else value
        return self.body(inner, loops)

    def equation(self, equation: Any, loops: frozenset[int]) -> list[Expr]:
        name = equation.primitive.name
        given = [self.facts.value(atom) for atom in equation.invars]
        if jaxprs.call_name(equation) in self.facts.opaque:
            return [self.facts.atom(var, loops) for var in equation.outvars]
        if name in _INLINE_SCOPES and (scopes := jaxprs.inner_jaxprs(equation)):
            return self.enter(scopes[0], given, loops)
        match name:
            case "scan":
                return self.scan(equation, given, loops)
            case "while":
                return self.while_loop(equation, given, loops)
            case "cond":
                return self.cond(equation, given, loops)
            case "shard_map":
                return self.shard_map(equation, given, loops)
            case _:
                return self.plain(equation, given, loops)

    def plain(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        name = equation.primitive.name
        if name in _IDENTITIES and len(given) == len(equation.outvars):
            return list(given)
        if name == "convert_element_type" and given[0].dtype == str(np.dtype(equation.params["new_dtype"])):
            return list(given)
        if name == "split":
            return self.split(equation, given[0])
        if name in ("sort", "top_k"):
            return self.moved(equation, given, loops)
        names = _OPERATIONS.get(name)
        if names is None or not self.is_exact(equation):
            return [self.facts.atom(var, loops) for var in equation.outvars]
        dtype, shape = _kind(equation.outvars[0])
        params = tuple((key, _plain(equation.params[key])) for key in names) or None
        return [self.symbols.make(name, tuple(given), params, shape=shape, dtype=dtype)]

    def is_exact(self, equation: Any) -> bool:
        """Whether an equation computes integers or booleans from such; what comes from floats is an atom."""
        return all(_kind(atom)[0] in _EXACT for atom in (*equation.invars, *equation.outvars))

    def split(self, equation: Any, whole: Expr) -> list[Expr]:
        axis, offset = equation.params["axis"], 0
        parts: list[Expr] = []
        for var, size in zip(equation.outvars, equation.params["sizes"], strict=True):
            dtype, shape = _kind(var)
            starts = tuple(int(offset) if i == axis else 0 for i in range(len(shape)))
            stops = tuple(start + length for start, length in zip(starts, shape, strict=True))
            params = (("start_indices", starts), ("limit_indices", stops), ("strides", None))
            parts.append(self.symbols.make("slice", (whole,), params, shape=shape, dtype=dtype))
            offset += size
        return parts

    def moved(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        """Values that are rows in another order, of which only the range stays; indices are such of all numbers."""
        results = [self.facts.atom(var, loops) for var in equation.outvars]
        if equation.primitive.name == "top_k":
            shape = (given[0].shape[equation.params["axis"]],)
            numbers = self.symbols.make(
                "iota", params=(("dimension", 0),), shape=shape, dtype=results[1].dtype
            )
            given = (given[0], numbers)
        for result, source in zip(results, given, strict=True):
            if source.dtype in _EXACT:
                self.symbols.moved_rows(result.params, source)
        return results

    def loop_number(self, equation: Any) -> int:
        return self.facts.loop.setdefault(id(equation), next(self.facts._numbers))  # pyright: ignore[reportPrivateUsage]

    def scan(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        params, number = equation.params, self.loop_number(equation)
        consts, carries = jaxprs.scan_counts(equation)
        inner, within = params["jaxpr"], loops | {number}
        variables = jaxprs.opened(inner).invars[consts + carries :]
        items = [
            self.item(value, number, var)
            for value, var in zip(given[consts + carries :], variables, strict=True)
        ]
        start: list[Expr | None] = [*given[:consts], *[None] * carries, *items]
        results = self.enter(inner, start, within)
        inputs = [self.facts.of[var] for var in jaxprs.opened(inner).invars]
        final: list[Expr] = []
        for index, var in enumerate(equation.outvars):
            if index < carries:
                kept = results[index] is inputs[consts + index]
                final.append(given[consts + index] if kept else self.facts.atom(var, loops))
            else:
                final.append(self.stacked(var, results[index], number, loops))
        return final

    def stacked(self, var: Any, item: Expr, number: int, loops: frozenset[int]) -> Expr:
        dtype, shape = _kind(var)
        outer = (item.loops - {number}) | loops
        return self.symbols.make("stack", (item,), (number, id(var)), shape=shape, dtype=dtype, loops=outer)

    def item(self, value: Expr, reader: int, variable: Any) -> Expr:
        """The item of a stack that a pass of loop `reader` sees."""
        dtype, shape = _kind(variable)
        if value.op != "stack":
            return self.symbols.item_of(value, reader, shape=shape, dtype=dtype)
        source: Any = value.params
        return self.symbols.item_in(value.args[0], source[0], reader)

    def while_loop(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        params, within = equation.params, loops | {self.loop_number(equation)}
        condition, body = params["cond_nconsts"], params["body_nconsts"]
        nothing: list[Expr | None] = [None] * (len(given) - condition - body)
        self.enter(params["cond_jaxpr"], [*given[:condition], *nothing], within)
        self.enter(params["body_jaxpr"], [*given[condition : condition + body], *nothing], within)
        return [self.facts.atom(var, loops) for var in equation.outvars]

    def cond(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        within = loops | {self.loop_number(equation)}
        results = [self.enter(branch, given[1:], within) for branch in jaxprs.inner_jaxprs(equation)]
        return [
            values[0] if all(value is values[0] for value in values) else self.facts.atom(var, loops)
            for var, values in zip(equation.outvars, zip(*results, strict=True), strict=True)
        ]

    def shard_map(self, equation: Any, given: Sequence[Expr], loops: frozenset[int]) -> list[Expr]:
        params = equation.params
        start = [
            value.args[0] if value.op == "shard" and value.params == frame(equation, spec) else None
            for value, spec in zip(given, params["in_specs"], strict=True)
        ]
        results = self.enter(params["jaxpr"], start, loops)
        final: list[Expr] = []
        for var, value, spec in zip(equation.outvars, results, params["out_specs"], strict=True):
            dtype, shape = _kind(var)
            if not _one_value_per_shard(equation, spec):
                final.append(self.facts.atom(var, loops))
                continue
            final.append(
                self.symbols.make("shard", (value,), frame(equation, spec), shape=shape, dtype=dtype)
            )
        return final


def frame(equation: Any, spec: Any) -> Hashable:
    """What must be equal for two shard_maps to mean the same by a value: mesh, manual axes and spec."""
    params = equation.params
    return "shard", params["mesh"], _manual_axes(equation), str(spec)


def _manual_axes(equation: Any) -> tuple[str, ...]:
    params = equation.params
    return tuple(sorted(map(str, params.get("newly_manual_axes", params.get("manual_axes")) or ())))


def _one_value_per_shard(equation: Any, spec: Any) -> bool:
    """Whether devices that share a shard hold the same: jax checked it, or no two share one."""
    named = {str(axis) for part in spec for axis in (part if isinstance(part, tuple) else (part,))}
    return bool(equation.params.get("check_vma")) or named.issuperset(_manual_axes(equation))


def _plain(value: Any) -> Hashable:
    if isinstance(value, (tuple, list)):
        return tuple(_plain(each) for each in value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    return None if value is None else str(value)
