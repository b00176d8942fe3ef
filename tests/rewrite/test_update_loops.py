"""Optimizer updates in the loop that makes their gradients: what may go there, what not, and that nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.capture import lowering
from hloscope.plan import LoopUpdate, Plan
from hloscope.rewrite import update_loops, updates
from hloscope.rewrite.slots import OneSlot, one_slot
from hloscope.rewrite.update_loops import update_in_loop, updates_of
from hloscope.rewrite.verify import compare

LAYERS, WIDTH = 3, 8
SGD = Callable[[jax.Array, jax.Array], jax.Array]
NAME = "state['w']"
ROWS = P(None, "fsdp")


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return hs.Topology("cpu:8").mesh(fsdp=8)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w), None

    return jnp.mean(jnp.square(lax.scan(layer, x, w)[0]))


def training(
    mesh: Mesh,
    update: Callable[[Any, jax.Array], Any],
    *,
    spec: P = ROWS,
    of: Callable[[jax.Array, jax.Array], jax.Array] = loss,
    moments: int = 1,
    **more: Any,
) -> hs.Step:
    """(state, x) -> (state, what else `update` returns); a state has w [layers, width, width] and its moments."""

    def shaped(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    w = shaped((LAYERS, WIDTH, WIDTH), spec)
    state = {"w": w} | {f"w{i}": w for i in range(1, moments + 1)}

    def step(state: Any, x: jax.Array) -> Any:
        return update(state, jax.grad(of)(state["w"], x))

    return hs.Step(step, args=(state, shaped((16, WIDTH), P("fsdp"))), **{"donate_argnums": (0,)} | more)


def momentum(state: Any, g: jax.Array) -> Any:
    m = 0.9 * state["w1"] + g
    return {"w": state["w"] - 0.1 * m, "w1": m}


def applied(step: hs.Step) -> hs.Step:
    return update_in_loop(step, LoopUpdate(parameters=(NAME,)))


def same(step: hs.Step, changed: hs.Step) -> bool:
    told = compare(step, changed, seed=3, reordered=False)
    return told["ok"] and all(leaf["bitwise"] for leaf in told["leaves"])


def stacks(step: hs.Step, mesh: Mesh) -> list[int]:
    """How many stacks of the parameter's shape each loop of the step makes."""
    found: list[int] = []
    for equation in lowering.trace(step, mesh).jaxpr.eqns:
        if equation.primitive.name == "scan":
            _, carried = updates.jaxprs.scan_counts(equation)
            shapes = [var.aval.shape for var in equation.outvars[carried:]]
            found.append(shapes.count((LAYERS, WIDTH, WIDTH)))
    return found


def test_no_stack_of_gradients_is_made_and_every_bit_is_the_same(mesh: Mesh) -> None:
    step = training(mesh, momentum)
    (update,) = updates_of(step)
    assert (update.parameter, update.refusal) == (NAME, None)
    assert [leaf.name for leaf in update.leaves] == [NAME, "state['w1']"]
    assert "3 trips" in update.proof[0]
    assert "take the places of state['w'], state['w1']" in update.proof[-1]
    changed = applied(step)
    assert stacks(step, mesh) == [0, 1]
    assert stacks(changed, mesh) == [0, 0]
    assert same(step, changed)
    assert changed.donate_argnums == step.donate_argnums


def unrolled(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w, unroll=2)[0])


def from_the_last(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w, reverse=True)[0])


@pytest.mark.parametrize("of", [unrolled, from_the_last])
def test_loops_of_other_kinds(mesh: Mesh, of: Any) -> None:
    step = training(mesh, momentum, of=of)
    assert same(step, applied(step))


def scaled_by_layer(state: Any, g: jax.Array) -> Any:
    """Norms of rows and columns of each layer, a rate of each layer, and work that needs no gradient."""
    rows = jnp.sqrt(jnp.sum(jnp.square(g), axis=2, keepdims=False) + 1e-3)
    rate = jnp.linspace(0.1, 0.2, LAYERS)[:, None, None]
    slow = jnp.where(jnp.abs(state["w1"]) > 1e-2, 0.9 * state["w1"], 0.0)
    m = slow + g / jnp.broadcast_to(rows[:, :, None], g.shape)
    return {"w": state["w"] - jnp.broadcast_to(rate, g.shape) * m, "w1": m}


def test_what_works_within_a_layer_goes_along(mesh: Mesh) -> None:
    step = training(mesh, scaled_by_layer)
    assert same(step, applied(step))


def test_the_layout_of_a_layer_is_that_of_its_parameter(mesh: Mesh) -> None:
    def constrained(state: Any, g: jax.Array) -> Any:
        return momentum(state, lax.with_sharding_constraint(g, NamedSharding(mesh, P(None, None, "fsdp"))))

    step = training(mesh, constrained)
    assert same(step, applied(step))
    specs = [
        e.params["sharding"].spec
        for scan in lowering.trace(applied(step), mesh).jaxpr.eqns
        if scan.primitive.name == "scan"
        for e in updates.jaxprs.opened(scan.params["jaxpr"]).eqns
        if e.primitive.name == "sharding_constraint"
    ]
    assert specs == [P("fsdp"), P(None, "fsdp")], "as the parameter lies, then as the step says"


def norm_of_all(state: Any, g: jax.Array) -> Any:
    return momentum(state, g / jnp.sqrt(jnp.sum(jnp.square(g))))


def running_sum(state: Any, g: jax.Array) -> Any:
    return momentum(state, jnp.cumsum(g, axis=0))


def next_layer(state: Any, g: jax.Array) -> Any:
    return momentum(state, jnp.roll(g, 1, axis=0))


def returned(state: Any, g: jax.Array) -> Any:
    return momentum(state, g) | {"gradient": g}


def logged(state: Any, g: jax.Array) -> Any:
    new = momentum(state, g)
    return new | {"moved": jnp.sum(jnp.abs(new["w"] - state["w"]))}


def old_kept(state: Any, g: jax.Array) -> Any:
    return momentum(state, g) | {"z": state["w"]}


def read_after(state: Any, g: jax.Array) -> Any:
    new = momentum(state, g)
    return new | {"apart": jnp.sum(state["w"] * jnp.sum(new["w"]))}


def forgets_the_old(state: Any, g: jax.Array) -> Any:
    return {"w": -0.1 * g, "w1": state["w1"]}


def one_sum_for_all(state: Any, g: jax.Array) -> Any:
    return momentum(state, g - jnp.mean(g, axis=0, keepdims=True))


REFUSED = {
    "norm_of_all": (
        norm_of_all,
        "div reads another value for which the gradients of all layers must be there",
    ),
    "running_sum": (running_sum, "cumsum reads the gradients of all layers together"),
    "next_layer": (next_layer, "reads the gradients of all layers together"),
    "returned": (returned, "the gradient itself is a result of the step"),
    "logged": (logged, "goes elsewhere than into a donated argument"),
    "old_kept": (old_kept, "is a result of the step as it is"),
    "read_after": (read_after, "is read again after the loop, by mul"),
    "forgets_the_old": (forgets_the_old, "the update does not read"),
    "one_sum_for_all": (one_sum_for_all, "reduce_sum reads the gradients of all layers together"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_must_stay_behind_the_loop(mesh: Mesh, name: str) -> None:
    update, why = REFUSED[name]
    step = training(mesh, update)
    (found,) = updates_of(step)
    assert found.refusal is not None
    assert re.search(why, found.refusal)
    action = LoopUpdate(parameters=(found.parameter,))
    with pytest.raises(hs.UserError, match=f"the plan no longer fits: .*{re.escape(found.refusal)}"):
        update_in_loop(step, action)


def test_what_is_not_donated_stays(mesh: Mesh) -> None:
    assert updates_of(training(mesh, momentum, donate_argnums=())) == []


def test_layers_on_different_devices_stay(mesh: Mesh) -> None:
    here = hs.Topology("cpu:8").mesh(stage=1, fsdp=8)
    (update,) = updates_of(training(here, momentum, spec=P("stage", "fsdp")))
    assert update.refusal is not None
    assert "lie on different devices" in update.refusal


def test_a_broken_rule_is_caught(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation over layers that counts as one within a layer: other values come out, and comparing tells."""

    def believing(equation: Any, length: int) -> OneSlot | None:
        if equation.primitive.name == "cumsum":
            return OneSlot(stacks=(True,), params=equation.params)
        return one_slot(equation, length)

    for module in (updates, update_loops):
        monkeypatch.setattr(module, "one_slot", believing)
    step = training(mesh, running_sum)
    assert not compare(step, applied(step), seed=3, reordered=True)["ok"]


def test_a_plan_applies_it_and_names_what_has_gone(mesh: Mesh) -> None:
    step = training(mesh, momentum)
    assert same(step, hs.apply(step, Plan(actions=(LoopUpdate(parameters=(NAME,)),))))
    action = LoopUpdate(parameters=("state['gone']",))
    with pytest.raises(
        hs.UserError, match=r"no longer fits: .*state\['gone'\]: the step has no such argument"
    ):
        hs.apply(step, Plan(actions=(action,)))


def test_a_step_that_is_jitted_already(mesh: Mesh) -> None:
    step = training(mesh, momentum)
    jitted = hs.Step(jax.jit(step.fn, donate_argnums=0), args=step.args)
    assert same(step, replace(applied(replace(jitted, donate_argnums=())), sample=step.sample))


def by_hand(mesh: Mesh, scale: Callable[[jax.Array, jax.Array], jax.Array], layers: int = LAYERS) -> hs.Step:
    """A step whose backward loop also stacks a number for each layer: the square of its gradient's norm."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        y, saved = lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, w)

        def back(dy: jax.Array, layer: tuple[jax.Array, jax.Array]) -> Any:
            w, x = layer
            dx, dw = jax.vjp(lambda x, w: jnp.tanh(x @ w), x, w)[1](dy)
            return dx, (dw, jnp.sum(dw**2))

        _, (g, squares) = lax.scan(back, 2 * y, (w, saved), reverse=True)
        return w - 0.1 * scale(g, squares)

    shapes = ((layers, WIDTH, WIDTH), (16, WIDTH))
    args = tuple(
        jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh, spec))
        for s, spec in zip(shapes, (ROWS, P("fsdp")), strict=True)
    )
    return hs.Step(step, args=args, donate_argnums=(0,))


def test_what_else_the_loop_stacks_goes_into_the_update(mesh: Mesh) -> None:
    step = by_hand(mesh, lambda g, n: g / jnp.broadcast_to(jnp.sqrt(n + 1e-6)[:, None, None], g.shape))
    (update,) = updates_of(step)
    assert update.refusal is None
    assert {var.aval.shape for var in update.gradients} == {(LAYERS, WIDTH, WIDTH), (LAYERS,)}
    changed = update_in_loop(step, LoopUpdate(parameters=(update.parameter,)))
    assert stacks(changed, mesh) == [0, 0]
    assert same(step, changed)


def test_what_needs_the_norms_of_all_layers_stays_behind_the_loop(mesh: Mesh) -> None:
    step = by_hand(mesh, lambda g, squares: g / jnp.sqrt(jnp.sum(squares)))
    (update,) = updates_of(step)
    assert update.refusal is not None
    step = by_hand(mesh, lambda g, squares: g / jnp.sqrt(squares)[:, None, None] / jnp.sqrt(jnp.sum(squares)))
    (update,) = updates_of(step)
    assert update.refusal is not None


def test_a_loop_without_trips_is_left_alone(mesh: Mesh) -> None:
    assert updates_of(by_hand(mesh, lambda g, squares: g, layers=0)) == []


def test_numbers_for_each_layer_are_stretched_over_it(mesh: Mesh) -> None:
    step = training(mesh, lambda s, g: momentum(s, g * jnp.arange(1.0, LAYERS + 1)[:, None, None]))
    (update,) = updates_of(step)
    assert update.refusal is None
    assert same(step, applied(step))


def test_weights_that_are_cast_as_whole_stacks(mesh: Mesh) -> None:
    step = training(mesh, momentum, of=lambda w, x: loss(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)))
    (update,) = updates_of(step)
    assert (update.parameter, update.refusal) == (NAME, None)
    assert same(step, applied(step))


def test_one_that_is_refused_takes_no_other_ones_name(mesh: Mesh) -> None:
    def both(state: Any, x: jax.Array) -> Any:
        def of(state: Any) -> jax.Array:
            def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
                return jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]), None

            return jnp.mean(jnp.square(lax.scan(layer, x, (state["a"], state["b"]))[0]))

        g = jax.grad(of)(state)
        clipped = g["b"] / jnp.sqrt(jnp.sum(g["b"] ** 2))
        return {"a": state["a"] - 0.1 * g["a"], "b": state["b"] - 0.1 * clipped}

    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32, sharding=NamedSharding(mesh, ROWS))
    x = jax.ShapeDtypeStruct((16, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P("fsdp")))
    step = hs.Step(both, args=({"a": w, "b": w}, x), donate_argnums=(0,))
    assert sorted(u.refusal is None for u in updates_of(step)) == [False, True]
    changed = update_in_loop(step, LoopUpdate(parameters=("state['a']",)))
    assert same(step, changed)


def test_gradients_of_several_ranks_share_an_update(mesh: Mesh) -> None:
    def step(state: Any, x: jax.Array) -> Any:
        def of(state: Any) -> jax.Array:
            def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
                return jnp.tanh(x @ p[0] + p[1]), None

            return jnp.mean(jnp.square(lax.scan(layer, x, (state["w"], state["b"]))[0]))

        g = jax.grad(of)(state)
        bias = g["b"] + jnp.sum(g["w"], axis=1)
        return {"w": state["w"] - 0.1 * g["w"], "b": state["b"] - 0.1 * bias}

    def shaped(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    w = shaped((LAYERS, WIDTH, WIDTH), P(None, None, "fsdp"))
    state = {"w": w, "b": shaped((LAYERS, WIDTH), P())}
    whole = hs.Step(step, args=(state, shaped((16, WIDTH), P("fsdp"))), donate_argnums=(0,))
    (update,) = updates_of(whole)
    assert [leaf.name for leaf in update.leaves] == [NAME, "state['b']"]
    assert {g.aval.shape: s.spec for g, s in update.layouts.items()} == {
        (LAYERS, WIDTH, WIDTH): P(None, "fsdp"),
        (LAYERS, WIDTH): P(),
    }
    assert same(whole, applied(whole))
