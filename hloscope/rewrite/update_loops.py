"""Optimizer updates done in the loop that makes their gradients: the step as it is, and with them moved.

Slot by slot the same is computed from the same values, so no result changes; devices may add a gradient up in another
order, since it is reduced to the shard that its parameter has before it is used.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.plan import LoopUpdate
from hloscope.rewrite import jaxprs
from hloscope.rewrite.order import needed_equations, sorted_equations
from hloscope.rewrite.slots import one_slot
from hloscope.rewrite.traced import Traced
from hloscope.rewrite.updates import Update, find_updates


def updates_of(step: Step) -> list[Update]:
    """The updates behind the loops of a step, those that must stay there with the reason. Traces the step."""
    traced = Traced.of(step)
    return find_updates(jaxprs.opened(jaxprs.flatten(traced.closed)), traced.leaves())


def update_in_loop(step: Step, action: LoopUpdate) -> Step:
    """The step with the updates of an action's parameters in their loops. Raises UserError if it does not fit."""
    traced = Traced.of(step)
    flat = jaxprs.flatten(traced.closed)
    leaves = traced.leaves()
    chosen = _chosen(find_updates(jaxprs.opened(flat), leaves), action, {leaf.name for leaf in leaves})
    changed = lowering.within(traced.mesh, lambda: _rebuilt(flat, chosen))
    return traced.step_of(changed)


def _chosen(found: Sequence[Update], action: LoopUpdate, arguments: Collection[str]) -> list[Update]:
    # One that is refused may have the name of another, which its gradient looks like.
    known = {update.parameter: update for update in sorted(found, key=lambda u: u.refusal is None)}
    for name in action.parameters:
        update = known.get(name)
        if name not in arguments:
            why = "the step has no such argument"
        else:
            why = "no loop of the step makes its gradient" if update is None else update.refusal
        if why is not None:
            raise UserError(f"the plan no longer fits: {action.title}: {name}: {why}")
    return [known[name] for name in dict.fromkeys(action.parameters)]


def _rebuilt(flat: Any, chosen: Sequence[Update]) -> Any:
    body = jaxprs.opened(flat)
    by_scan: dict[int, list[Update]] = {}
    for update in chosen:
        by_scan.setdefault(id(update.scan), []).append(update)
    replaced = {var for update in chosen for var in update.places}
    equations: list[Any] = []
    for equation in body.eqns:
        if id(equation) in by_scan:
            equations += _Loop.of(by_scan[id(equation)]).equations()
        elif replaced.isdisjoint(equation.outvars):
            equations.append(equation)
    needed = needed_equations(equations, body)
    return jaxprs.rebuilt(flat, equations=sorted_equations(needed, body))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Loop:
    """A loop with updates that are to go inside.

    Attributes:
      work: their equations, in order.
      held: arguments that are carried, each trip reading and replacing one slot; the new values are `results`.
      stacks, whole: what else the updates read one slot of, and whole.
      inner: operands of the loop that are read slot by slot, in its own order.
    """

    scan: Any
    work: tuple[Any, ...]
    gradients: frozenset[Any]
    held: tuple[Any, ...]
    results: tuple[Any, ...]
    shardings: Mapping[Any, Any]
    stacks: tuple[Any, ...]
    whole: tuple[Any, ...]

    @classmethod
    def of(cls, updates: Sequence[Update]) -> _Loop:
        scan = updates[0].scan
        length = scan.params["length"]
        work = tuple({id(e): e for update in updates for e in update.equations}.values())
        made = {var for equation in work for var in equation.outvars}
        gradients = frozenset(var for update in updates for var in update.gradients)
        held = tuple(a for update in updates for a in update.places.values())
        read: dict[Any, bool] = {}
        for equation in work:
            slot = one_slot(equation, length)
            assert slot is not None
            for atom, is_stack in zip(equation.invars, slot.stacks, strict=True):
                if not jaxprs.is_literal(atom) and atom not in made and atom not in gradients:
                    read[(atom, is_stack)] = is_stack
        return cls(
            scan=scan,
            work=work,
            gradients=gradients,
            held=held,
            results=tuple(var for update in updates for var in update.places),
            shardings={g: layout for u in updates for g, layout in u.layouts.items()},
            stacks=tuple(atom for (atom, is_stack) in read if is_stack and atom not in held),
            whole=tuple(atom for (atom, is_stack) in read if not is_stack),
        )

    def equations(self) -> list[Any]:
        """What stands in the loop's place."""
        given = [*self.scan.invars, *self.held, *self.stacks, *self.whole]
        kept = [var for var in self.scan.outvars if var not in self.gradients]
        # Somebody may read a name that nobody reads any more: results are told apart.
        named = [jaxprs.fresh(var) if jaxprs.is_dropped(var) else var for var in kept]
        return jaxprs.traced_like(self.scan, self.run, given, [*named, *self.results])

    def run(self, *given: Any) -> list[Any]:
        """The loop over the operands of `equations`."""
        consts, carried = jaxprs.scan_counts(self.scan)
        own = len(self.scan.invars)
        fixed, start, items = (
            given[:consts],
            given[consts : consts + carried],
            given[consts + carried : own],
        )
        extra = given[own:]
        held, stacks = extra[: len(self.held)], extra[len(self.held) : len(self.held) + len(self.stacks)]
        whole = dict(zip(self.whole, extra[len(self.held) + len(self.stacks) :], strict=True))
        atoms = self.scan.invars[consts + carried :]
        # An argument that is replaced is read where it is replaced, not beside.
        apart = [None if self._is_held(atom) else item for atom, item in zip(atoms, items, strict=True)]
        length, reverse = self.scan.params["length"], self.scan.params["reverse"]
        trips = jnp.arange(length, dtype=jnp.uint32)
        trip = partial(self.trip, fixed, whole)
        (carry, held), outputs = lax.scan(
            trip,
            (start, held),
            (trips, apart, stacks),
            length=length,
            reverse=reverse,
            unroll=self.scan.params["unroll"],
        )
        return [*carry, *outputs, *held]

    def trip(self, fixed: Any, whole: Any, state: Any, items: Any) -> Any:
        """One trip: the loop's own work, then the update of this slot."""
        (carry, held), (index, apart, stacks) = state, items
        slots = {
            argument: lax.dynamic_index_in_dim(value, index, 0, keepdims=False)
            for argument, value in zip(self.held, held, strict=True)
        }
        consts, carried = jaxprs.scan_counts(self.scan)
        atoms = self.scan.invars[consts + carried :]
        own = [slots[atom] if self._is_held(atom) else item for atom, item in zip(atoms, apart, strict=True)]
        made = jaxprs.as_function(self.scan.params["jaxpr"])(*fixed, *carry, *own)
        outputs = list(zip(self.scan.outvars[carried:], made[carried:], strict=True))
        values: dict[Any, Any] = {
            **slots,
            **dict(zip(self.stacks, stacks, strict=True)),
            **{var: self._placed(var, value) for var, value in outputs if var in self.gradients},
        }
        self._update(values, whole)
        after = [
            lax.dynamic_update_index_in_dim(old, values[result], index, 0)
            for old, result in zip(held, self.results, strict=True)
        ]
        kept = [value for var, value in outputs if var not in self.gradients]
        return (tuple(made[:carried]), tuple(after)), kept

    def _update(self, values: dict[Any, Any], whole: Mapping[Any, Any]) -> None:
        """Compute the update's values of one slot into `values`."""
        for equation in self.work:
            slot = one_slot(equation, self.scan.params["length"])
            assert slot is not None
            pairs = zip(equation.invars, slot.stacks, strict=True)
            given = [
                atom.val if jaxprs.is_literal(atom) else values[atom] if is_stack else whole[atom]
                for atom, is_stack in pairs
            ]
            values.update(zip(equation.outvars, slot.bind(equation, given), strict=True))

    def _placed(self, gradient: Any, value: Any) -> Any:
        sharding = self.shardings.get(gradient)
        return value if sharding is None else lax.with_sharding_constraint(value, sharding)

    def _is_held(self, atom: Any) -> bool:
        return not jaxprs.is_literal(atom) and atom in self.held
