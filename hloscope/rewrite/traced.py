"""A step's jaxpr, and a step of a changed one with the same signature, shardings and donation."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.rewrite import jaxprs
from hloscope.rewrite.leaves import Leaf, argument_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A step's jaxpr, and what is needed to make a step of a changed one."""

    step: Step
    closed: Any
    mesh: Any
    out_tree: Any
    donated: tuple[bool, ...] = ()
    call: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, step: Step) -> Traced:
        """Trace a step in the mesh of its arguments."""
        import jax

        shardings = lowering.given_shardings(step)
        platforms = [device.platform for sharding in shardings for device in sharding.device_set]
        mesh = lowering.find_mesh(shardings, platforms[0]) if platforms else None
        traced = lowering.trace(step, mesh)
        out_tree = jax.tree.structure(traced.out_info)
        return cls(
            step=step,
            closed=traced.jaxpr,
            mesh=mesh,
            out_tree=out_tree,
            donated=tuple(jaxprs.donated_leaves(traced)),
            call=_own_jit(traced, step),
        )

    def leaves(self) -> list[Leaf]:
        """The arguments in the order of the jaxpr's inputs, with what a `jax.jit` function donates by itself."""
        leaves = argument_leaves(self.step)
        return [replace(leaf, donated=gone) for leaf, gone in zip(leaves, self.donated, strict=True)]

    def step_of(self, closed: Any) -> Step:
        """The step whose function is a changed jaxpr."""
        import jax

        flat, static, step = jaxprs.as_function(closed), self.step.static_argnums, self.step
        expected = jax.tree.structure(_dynamic(step.args, static, step.kwargs))

        def rewritten(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _as_traced(step, args, kwargs)
            leaves, given = jax.tree.flatten(_dynamic(args, static, kwargs))
            if given != expected:
                raise UserError(f"the rewritten step takes {expected}, got {given}")
            return jax.tree.unflatten(self.out_tree, flat(*leaves))

        _take_signature(rewritten, step.fn)
        if not step.is_jitted:
            return replace(step, fn=rewritten)
        return replace(step, fn=jax.jit(rewritten, **self.call))


def _take_signature(function: Callable[..., Any], original: Callable[..., Any]) -> None:
    """Name and signature, from which jax names the parameters of the compiled module."""
    function.__name__ = getattr(original, "__name__", "step")
    # Callables of C have none; jax counts their arguments then, too.
    with contextlib.suppress(TypeError, ValueError):
        vars(function)["__signature__"] = inspect.signature(original)


def _as_traced(
    step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name as the step was traced with; as they are, where the signature does not tell."""
    if kwargs.keys() == step.kwargs.keys():
        return args, kwargs
    try:
        signature = inspect.signature(step.fn)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return args, kwargs
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(parameter.kind in several for parameter in signature.parameters.values()):
        return args, kwargs
    named = {name: value for name, value in given.items() if name in step.kwargs}
    return tuple(value for name, value in given.items() if name not in named), named


def _dynamic(args: Sequence[Any], static: Any, kwargs: Any) -> Any:
    positions = cast("tuple[int, ...]", static)
    return tuple(arg for position, arg in enumerate(args) if position not in positions), dict(kwargs)


def _own_jit(traced: Any, step: Step) -> dict[str, Any]:
    """Donation and shardings of a step that is a `jax.jit` function already."""
    if not step.is_jitted:
        return {}
    if len(traced.args_info[0]) != len(step.args):
        raise UserError(
            "a jax.jit function with static arguments cannot be rewritten: bind them before jax.jit"
        )
    try:
        return jaxprs.jit_options(traced)
    except ValueError as error:
        raise UserError(f"this jax.jit function cannot be rewritten: {error}") from error
