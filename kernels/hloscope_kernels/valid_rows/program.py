"""A function as a flat list of operations: what its jaxpr says, with every inner call written out."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
from jax.extend import core

# Calls that only wrap their body.
_CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "remat",
        "remat2",
        "checkpoint",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constant:
    """A scalar that stands in the program, with the dtype that the program gave it."""

    value: Any
    dtype: Any


Operand = int | Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One equation: values are numbers, constants stand in place."""

    primitive: Any
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    params: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the primitive, as jaxprs print it."""
        return str(self.primitive.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A flat program.

    Attributes:
      inputs: values of the operands, in order.
      captured: arrays that the function closed over, by value.
      operations: in an order in which each follows what it needs; none is superfluous.
      outputs: what the function returns.
      types: shape and dtype of every value.
    """

    inputs: tuple[int, ...]
    captured: dict[int, Any]
    operations: tuple[Operation, ...]
    outputs: tuple[Operand, ...]
    types: dict[int, jax.ShapeDtypeStruct]


def read_program(function: Callable[..., Any], operands: Sequence[Any]) -> tuple[Program, Any]:
    """Trace a function on arrays or shapes; also returns the tree of its results."""
    traced: tuple[Any, Any] = jax.make_jaxpr(function, return_shape=True)(*operands)
    closed, shapes = traced
    reader = _Reader()
    inputs = tuple(reader.new(variable) for variable in closed.jaxpr.invars)
    outputs = reader.read(closed, list(inputs))
    operations = _needed(reader.operations, outputs)
    used = {operand for operation in operations for operand in operation.operands} | set(outputs)
    program = Program(
        inputs=inputs,
        captured={value: array for value, array in reader.captured.items() if value in used},
        operations=operations,
        outputs=tuple(outputs),
        types=reader.types,
    )
    return program, cast("Any", jax.tree.structure(shapes))


@dataclass(slots=True)
class _Reader:
    operations: list[Operation] = field(default_factory=list[Operation])
    captured: dict[int, Any] = field(default_factory=dict[int, Any])
    types: dict[int, jax.ShapeDtypeStruct] = field(default_factory=dict[int, jax.ShapeDtypeStruct])

    def new(self, variable: Any) -> int:
        value = len(self.types)
        self.types[value] = jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)
        return value

    def read(self, jaxpr: Any, operands: Sequence[Operand]) -> list[Operand]:
        """Write out a jaxpr, closed or open, on these operands; returns its results."""
        body = getattr(jaxpr, "jaxpr", jaxpr)
        values: dict[Any, Operand] = dict(zip(body.invars, operands, strict=True))
        for variable, array in zip(body.constvars, getattr(jaxpr, "consts", ()), strict=True):
            value = self.new(variable)
            values[variable], self.captured[value] = value, array

        def operand(atom: Any) -> Operand:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval
                return Constant(value=atom.val, dtype=aval.dtype)
            return values[atom]

        for equation in body.eqns:
            given = tuple(operand(atom) for atom in equation.invars)
            values.update(zip(equation.outvars, self._equation(equation, given), strict=True))
        return [operand(atom) for atom in body.outvars]

    def _equation(self, equation: Any, given: tuple[Operand, ...]) -> Sequence[Operand]:
        params = dict(equation.params)
        if equation.primitive.name in _CALLS:
            return self.read(params.get("jaxpr") or params.get("call_jaxpr"), given)
        results = tuple(self.new(variable) for variable in equation.outvars)
        self.operations.append(
            Operation(primitive=equation.primitive, operands=given, results=results, params=params)
        )
        return results


def _needed(operations: Sequence[Operation], outputs: Sequence[Operand]) -> tuple[Operation, ...]:
    needed = set(outputs)
    kept: list[Operation] = []
    for operation in reversed(operations):
        if needed.intersection(operation.results):
            needed.update(operation.operands)
            kept.append(operation)
    return tuple(reversed(kept))
