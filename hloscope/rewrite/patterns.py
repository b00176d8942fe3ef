"""Recognising the work that has a hand-written kernel: by what is computed, not by how it is written.

A form is the computation of one value down to its leaves: order of factors, wrapping calls and type marks do not
count. The forms to look for are traced from plain functions, by the same jax that traced the step.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope.rewrite import jaxprs
from hloscope.rewrite.cones import Cone

Form = int
_COMMUTATIVE = frozenset({"add", "add_any", "max", "min", "mul"})
_SAME = frozenset({"copy", "copy_p", "name", "pcast", "pvary", "stop_gradient"})
_DECIDED_ELSEWHERE = frozenset({"out_sharding", "sharding", "weak_type", "accuracy"})


def form_of(cone: Cone) -> Form:
    """The form of a cone; a leaf is known by its shape and type."""
    return _form(cone.sink, cone.equations)


def glu_kernel(cone: Cone) -> tuple[str, str] | None:
    """(`forward` or `backward`, activation) of a cone that is a gated linear unit or its gradient."""
    matrices = sorted(cone.matrices, key=lambda leaf: leaf.aval.shape[1])
    if not matrices or len(cone.leaves) != len(matrices) or cone.uniform or len(matrices) > 2:
        return None
    fused = matrices[-1].aval
    rows, width = fused.shape
    if width % 2 or any(leaf.aval.dtype != fused.dtype for leaf in (*matrices, cone.sink)):
        return None
    direction = "forward" if len(matrices) == 1 else "backward"
    if direction == "backward" and matrices[0].aval.shape != (rows, width // 2):
        return None
    forms = _glu_forms(rows, width, str(fused.dtype), direction)
    activation = forms.get(form_of(cone))
    return None if activation is None else (direction, activation)


def weighting(cone: Cone) -> tuple[Any, Any] | None:
    """(matrix, numbers per row) of a cone that multiplies them, in float32 inside."""
    if len(cone.leaves) != 2 or len(cone.matrices) != 1 or cone.uniform:
        return None
    (matrix,) = cone.matrices
    (weights,) = [leaf for leaf in cone.leaves if leaf is not matrix]
    kinds = (_kind(matrix), _kind(weights))
    if len(weights.aval.shape) != 1 or _kind(cone.sink) != kinds[0]:
        return None
    return (matrix, weights) if form_of(cone) in _weighting_forms(*kinds) else None


def row_dot(cone: Cone) -> frozenset[Any] | None:
    """The two matrices of a cone that is their dot, row by row, in float32."""
    if len(cone.leaves) != 2 or len(cone.matrices) != 2 or cone.uniform or len(cone.sink.aval.shape) != 1:
        return None
    left, right = cone.leaves
    if _kind(left) != _kind(right) or str(cone.sink.aval.dtype) != "float32":
        return None
    return cone.matrices if form_of(cone) in _dot_forms(_kind(left)) else None


Kind = tuple[tuple[int, ...], str]


def _kind(value: Any) -> Kind:
    return tuple(value.aval.shape), str(value.aval.dtype)


@cache
def _glu_forms(rows: int, width: int, dtype: str, direction: str) -> Mapping[Form, str]:
    fused = jax.ShapeDtypeStruct((rows, width), dtype)
    gradient = jax.ShapeDtypeStruct((rows, width // 2), dtype)
    activations: Mapping[str, Sequence[Callable[..., Any]]] = {
        "silu": (jax.nn.silu, lambda x: x * jax.nn.sigmoid(x)),
        "gelu": (jax.nn.gelu,),
    }
    found: dict[Form, str] = {}
    for name, functions in activations.items():
        for function in functions:
            for halves in (lambda x: jnp.split(x, 2, axis=-1), _sliced):
                glu = partial(_glu, function, halves)
                if direction == "forward":
                    found[_traced(glu, fused)] = name
                else:
                    found[_traced(partial(_glu_gradient, glu), fused, gradient)] = name
    return found


def _sliced(x: Any) -> tuple[Any, Any]:
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:]


def _glu(activation: Callable[..., Any], halves: Callable[..., Any], x: Any) -> Any:
    gate, up = halves(x)
    return activation(gate) * up


def _glu_gradient(glu: Callable[..., Any], x: Any, gradient: Any) -> Any:
    return jax.vjp(glu, x)[1](gradient)[0]


@cache
def _weighting_forms(matrix: Kind, weights: Kind) -> frozenset[Form]:
    operands = (jax.ShapeDtypeStruct(*matrix), jax.ShapeDtypeStruct(*weights))

    def wide(g: Any, w: Any) -> Any:
        return (g.astype(jnp.float32) * w.astype(jnp.float32)[:, None]).astype(g.dtype)

    return frozenset({_traced(wide, *operands)})


@cache
def _dot_forms(matrix: Kind) -> frozenset[Form]:
    operand = jax.ShapeDtypeStruct(*matrix)

    def dot(g: Any, y: Any) -> Any:
        return jnp.sum(g.astype(jnp.float32) * y.astype(jnp.float32), axis=1)

    return frozenset({_traced(dot, operand, operand)})


def _traced(function: Callable[..., Any], *operands: Any) -> Form:
    body = jaxprs.opened(jaxprs.flatten(jax.make_jaxpr(function)(*operands)))
    return _form(body.outvars[0], body.eqns)


_numbers: dict[Hashable, int] = {}


def _numbered(form: Hashable) -> Form:
    """Equal forms by one number, so that a form stays small however much of it is shared."""
    return _numbers.setdefault(form, len(_numbers))


def _form(sink: Any, equations: Sequence[Any]) -> Form:
    known: dict[Any, Form] = {}

    def form(atom: Any) -> Form:
        if jaxprs.is_literal(atom):
            return _number(atom.val, atom.aval.dtype)
        if atom not in known:
            known[atom] = _numbered(("leaf", _kind(atom)))
        return known[atom]

    for equation in equations:
        for var in equation.outvars:
            known[var] = _made(equation, var, form)
    return form(sink)


def _number(value: Any, dtype: Any) -> Form:
    return _numbered(("number", float(np.asarray(value, dtype)), str(np.dtype(dtype))))


def _made(equation: Any, var: Any, form: Callable[[Any], Form]) -> Form:
    name: str = equation.primitive.name
    operand: Any = next(iter(equation.invars), None)
    if name in _SAME or (name == "convert_element_type" and operand.aval.dtype == var.aval.dtype):
        return form(operand)
    if name == "convert_element_type" and jaxprs.is_literal(operand):
        return _number(operand.val, equation.params["new_dtype"])
    if name in ("squeeze", "reshape", "expand_dims", "broadcast_in_dim"):
        return form(operand) if _is_same_numbers(operand, var) else _numbered(("spread", form(operand)))
    if name == "split":
        index = list(equation.outvars).index(var)
        start = sum(map(int, equation.params["sizes"][:index]))
        return _numbered(("columns", start, start + int(equation.params["sizes"][index]), form(operand)))
    if name == "slice":
        bounds = (equation.params["start_indices"][-1], equation.params["limit_indices"][-1])
        return _numbered(("columns", *map(int, bounds), form(operand)))
    if name == "reduce_sum" and operand.aval.shape[-1] == 1:
        return form(operand)
    return _operation(equation, var, form)


def _is_same_numbers(operand: Any, var: Any) -> bool:
    """Columns of one come and go, and a number per row may stand in every column: elementwise work is the same."""
    before, after = tuple(operand.aval.shape), tuple(var.aval.shape)
    return bool(before) and before[0] == after[0] and (before[1:] in ((), (1,)) or before == after)


def _operation(equation: Any, var: Any, form: Callable[[Any], Form]) -> Form:
    name = equation.primitive.name
    params = tuple(
        sorted((key, str(value)) for key, value in equation.params.items() if key not in _DECIDED_ELSEWHERE)
    )
    given = [form(atom) for atom in equation.invars]
    if name in _COMMUTATIVE:
        given.sort(key=hash)
    return _numbered(("add" if name == "add_any" else name, _kind(var)[1], params, tuple(given)))
