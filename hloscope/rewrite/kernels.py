"""Which kernel takes a group of row-wise work, and the function that takes its place."""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp

from hloscope.rewrite import jaxprs
from hloscope.rewrite.cones import Group, is_matrix
from hloscope.rewrite.patterns import glu_kernel, row_dot, weighting
from hloscope_kernels import glu_rows, glu_rows_bwd, unsort_bwd_rows, valid_rows
from hloscope_kernels.chip import tpu_chip
from hloscope_kernels.choice import Implementation
from hloscope_kernels.glu_rows import supports as glu_supports
from hloscope_kernels.glu_rows.formula import Activation
from hloscope_kernels.unsort_bwd_rows import supports as unsort_supports
from hloscope_kernels.valid_rows import supports as rows_support

KernelMode = Literal["auto", "interpret", "poisoned"]
_mode: ContextVar[KernelMode] = ContextVar("kernel_mode", default="auto")


@contextlib.contextmanager
def kernels_as(mode: KernelMode) -> Generator[None]:
    """How kernels are put in while a step is rewritten.

    `auto`: the kernel on a TPU, else XLA's reference, which has zeros in dead rows. `poisoned`: the reference,
    with NaN in every dead row: quick and strict, for whoever checks that no dead row is read. `interpret`: the
    kernel interpreted, with NaN where it writes nothing; as `poisoned` inside a shard_map that checks which
    values vary over its mesh, which jax's interpreter does not understand.
    """
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """A kernel for a group.

    Attributes:
      name: of the kernel.
      operands: its row operands, in the order that `call` takes them.
      call: (operands, uniform values, limit, donated operand to result, implementation) to the results, in the
        order of the group's sinks.
      in_place: pairs (operand, result) by position where the result may take the operand's place.
    """

    name: str
    operands: tuple[Any, ...]
    call: Callable[..., list[Any]]
    in_place: tuple[tuple[int, int], ...]


def choose_kernel(group: Group) -> Choice:
    """The hand-written kernel where the group is its work, else `valid_rows`."""
    return _glu(group) or _unsort(group) or _any_rows(group)


def refusal(group: Group, choice: Choice) -> str | None:
    """Why the kernel cannot take the group where it stands, None if it can."""
    chip = tpu_chip()
    if chip is not None and (axes := _automatic_axes()):
        return (
            f"the compiler partitions over {', '.join(axes)} here, and it cannot partition a kernel: "
            "put the layer into a shard_map"
        )
    kinds = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in choice.operands]
    if choice.name == "valid_rows":
        why = rows_support(partial(_evaluate_abstract, group), *kinds, chip=chip)
    elif choice.name == "unsort_bwd_rows":
        why = unsort_supports(kinds[0], chip)
    else:
        why = glu_supports(kinds[0], "silu", chip)
    # Off a TPU the reference runs.
    return None if chip is None and why == "the kernel is for TPU" else why


def _automatic_axes() -> list[str]:
    """Mesh axes with more than one device that the current trace does not handle by itself."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return []
    manual = set(mesh.manual_axes)
    return [str(name) for name, size in mesh.shape.items() if size > 1 and name not in manual]


def replacement(
    group: Group, choice: Choice, donate: Mapping[int, int], count: int, make_limit: Callable[..., Any]
) -> Callable[..., list[Any]]:
    """The function that takes the group's place: (row operands, uniform values, what the limit is made from).

    `count` is the number of row operands and uniform values together.
    """
    asked, operands = _mode.get(), len(choice.operands)

    def run(*values: Any) -> list[Any]:
        in_mesh = any(jax.typeof(value).manual_axis_type.varying for value in values)
        mode = "poisoned" if asked == "interpret" and in_mesh else asked
        implementation = _IMPLEMENTATIONS[mode]
        limit = make_limit(*values[count:])
        results = choice.call(values[:operands], values[operands:count], limit, donate, implementation)
        return [_poisoned(result, limit) for result in results] if mode == "poisoned" else results

    return run


_IMPLEMENTATIONS: Mapping[KernelMode, Implementation] = {
    "auto": "auto",
    "interpret": "interpret",
    "poisoned": "xla",
}


def _poisoned(value: Any, limit: Any) -> Any:
    row = jax.lax.broadcasted_iota(jnp.int32, value.shape, 0)
    worst = jnp.nan if jnp.issubdtype(value.dtype, jnp.floating) else jnp.iinfo(value.dtype).min
    return jnp.where(row < limit, value, jnp.asarray(worst, value.dtype))


def _glu(group: Group) -> Choice | None:
    if len(group.cones) != 1 or (found := glu_kernel(group.cones[0])) is None:
        return None
    direction = found[0]
    activation = cast("Activation", found[1])
    operands = tuple(sorted(group.leaves, key=lambda leaf: -leaf.aval.shape[1]))
    if direction == "forward":

        def forward(rows: Sequence[Any], uniform: Any, limit: Any, donate: Any, how: Any) -> list[Any]:
            (fused,) = rows
            return [glu_rows(fused, limit, activation, implementation=how)]

        return Choice(name="glu_rows", operands=operands, call=forward, in_place=())

    def backward(rows: Sequence[Any], uniform: Any, limit: Any, donate: Any, how: Any) -> list[Any]:
        fused, gradient = rows
        return [glu_rows_bwd(fused, gradient, limit, activation, donate=bool(donate), implementation=how)]

    return Choice(name="glu_rows_bwd", operands=operands, call=backward, in_place=((0, 0),))


def _unsort(group: Group) -> Choice | None:
    if len(group.cones) != 2:
        return None
    for first, second in ((0, 1), (1, 0)):
        weighted, dot = weighting(group.cones[first]), row_dot(group.cones[second])
        if weighted is None or dot is None or weighted[0] not in dot:
            continue
        gradient, weights = weighted
        (y,) = dot - {gradient}

        def call(
            rows: Sequence[Any], uniform: Any, limit: Any, donate: Any, how: Any, swap: bool = first == 1
        ) -> list[Any]:
            gradient, y, weights = rows
            results = unsort_bwd_rows(gradient, y, weights, limit, donate=bool(donate), implementation=how)
            return list(results[::-1] if swap else results)

        return Choice(
            name="unsort_bwd_rows", operands=(gradient, y, weights), call=call, in_place=((0, first),)
        )
    return None


def _any_rows(group: Group) -> Choice:
    def call(rows: Sequence[Any], uniform: Any, limit: Any, donate: Any, how: Any) -> list[Any]:
        function = partial(_evaluate, group, uniform)
        return list(valid_rows(function, limit, donate=donate, implementation=how)(*rows))

    pairs = tuple(
        (operand, result)
        for operand, leaf in enumerate(group.leaves)
        for result, sink in enumerate(group.sinks)
        if is_matrix(leaf) and leaf.aval.shape == sink.aval.shape and leaf.aval.dtype == sink.aval.dtype
    )
    return Choice(name="valid_rows", operands=group.leaves, call=call, in_place=pairs)


def _evaluate(
    group: Group, uniform: Sequence[Any], *rows: Any, bind: Callable[..., list[Any]] = jaxprs.bind
) -> list[Any]:
    """The group's work on values."""
    values: dict[Any, Any] = dict(zip(group.leaves, rows, strict=True))
    values.update(zip(group.uniform, uniform, strict=True))
    for equation in group.equations:
        given = [atom.val if jaxprs.is_literal(atom) else values[atom] for atom in equation.invars]
        values.update(zip(equation.outvars, bind(equation, given), strict=True))
    return [values[sink] for sink in group.sinks]


def _evaluate_abstract(group: Group, *rows: Any) -> list[Any]:
    """The group's work outside of any mesh, with zeros for what is the same for all rows: to see what it is."""
    uniform = [jnp.zeros(each.aval.shape, each.aval.dtype) for each in group.uniform]
    return _evaluate(group, uniform, *rows, bind=jaxprs.bind_anywhere)


def donations(choice: Choice, dying: Collection[Any]) -> dict[int, int]:
    """Operand to result for what is written in place; each once."""
    chosen: dict[int, int] = {}
    for operand, result in choice.in_place:
        if choice.operands[operand] in dying and operand not in chosen and result not in chosen.values():
            chosen[operand] = result
    return chosen
