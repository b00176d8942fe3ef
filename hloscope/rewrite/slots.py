"""An equation on whole stacks, done for one slot of them: which operands it takes one slot of, and how it reads then.

A stack is an array whose first dimension counts the trips of a loop. Only what keeps slots apart has such a form:
slot i of the result is computed from slot i of the operands, and from nothing else of them.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from hloscope.rewrite import jaxprs
from hloscope.rewrite.demand_rules import ROWWISE
from hloscope_kernels.valid_rows.roles import REDUCTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSlot:
    """`stacks` says of each operand whether one slot of it is read, else it is read whole; `params` are those of the
    equation on one slot."""

    stacks: tuple[bool, ...]
    params: Mapping[str, Any]

    def bind(self, equation: Any, values: list[Any]) -> list[Any]:
        """The equation's results for one slot, with its own name and source."""
        return jaxprs.bind_as(equation, values, self.params)


def one_slot(equation: Any, length: int) -> OneSlot | None:
    """The equation for one slot of stacks of `length`; None if it does not keep them apart, or nobody knows it does."""
    if equation.effects or len(equation.outvars) != 1 or _shape(equation.outvars[0])[:1] != (length,):
        return None
    name = equation.primitive.name
    if name in ROWWISE:
        return _elementwise(equation)
    rule = _RULES.get(name)
    return None if rule is None else rule(equation)


def _elementwise(equation: Any) -> OneSlot | None:
    result, params = _shape(equation.outvars[0]), equation.params
    shapes = [_shape(atom) for atom in equation.invars]
    if not all(shape == () or _stretches(shape, result) for shape in shapes) or _names_axes(params):
        return None
    changed = {"sharding": None} if "sharding" in params else {}
    return OneSlot(stacks=tuple(shape != () for shape in shapes), params={**params, **changed})


def _stretches(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether each slot of the one goes to that slot of the other, along dimensions of 1 as often as need be."""
    if len(shape) != len(result) or shape[:1] != result[:1]:
        return False
    return all(own in (1, other) for own, other in zip(shape, result, strict=True))


def _names_axes(params: Mapping[str, Any]) -> bool:
    """Whether an equation has a sharding that says something: one that names no axis of the mesh does not, as the
    context has it."""
    sharding = params.get("sharding")
    return sharding is not None and any(getattr(sharding, "spec", (True,)))


def _broadcast(equation: Any) -> OneSlot | None:
    """Of a value that is the same in every slot, or of one that has slots."""
    params = equation.params
    if len(equation.invars) != 1 or _names_axes(params):
        return None
    dimensions = tuple(int(d) for d in params["broadcast_dimensions"])
    has_slots = dimensions[:1] == (0,)
    if has_slots and _shape(equation.invars[0])[0] != params["shape"][0]:
        return None
    kept = dimensions[1:] if has_slots else dimensions
    changed = {
        "shape": tuple(params["shape"][1:]),
        "broadcast_dimensions": tuple(d - 1 for d in kept),
        "sharding": None,
    }
    return OneSlot(stacks=(has_slots,), params={**params, **changed})


def _reduction(equation: Any) -> OneSlot | None:
    params = equation.params
    if 0 in params["axes"] or params.get("out_sharding") is not None:
        return None
    return OneSlot(stacks=(True,), params={**params, "axes": tuple(axis - 1 for axis in params["axes"])})


def _constraint(equation: Any) -> OneSlot | None:
    sharding, params = equation.params["sharding"], equation.params
    if not isinstance(sharding, NamedSharding) or params.get("unconstrained_dims"):
        return None
    slot = slot_sharding(sharding)
    return None if slot is None else OneSlot(stacks=(True,), params={**params, "sharding": slot})


def slot_sharding(sharding: NamedSharding) -> NamedSharding | None:
    """The sharding of one slot of a stack; None where slots lie on different devices."""
    spec: tuple[Any, ...] = tuple(sharding.spec)
    if spec and spec[0] not in (None, ()):
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[1:]), memory_kind=sharding.memory_kind)


_RULES: Mapping[str, Callable[[Any], OneSlot | None]] = {
    "broadcast_in_dim": _broadcast,
    "sharding_constraint": _constraint,
    **dict.fromkeys(REDUCTIONS, _reduction),
}


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)
