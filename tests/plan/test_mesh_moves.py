"""Moving a parameter's sharded axis: what moves with it, what stays, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.capture import lowering
from hloscope.plan import LogicalRules, MoveAxis, Plan
from hloscope.rewrite.leaves import argument_leaves
from hloscope.rewrite.shardings import move_axis

MOVE = MoveAxis(parameter="state.params['wo']", shape=(4, 8, 16), axes=("fsdp",), source=2, target=1)


class State(NamedTuple):
    params: Any
    mean: Any


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return hs.Topology("cpu:8").mesh(fsdp=2, expert=4)


def shaped(mesh: Mesh, shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))


def a_step(mesh: Mesh, body: Callable[[jax.Array], jax.Array] = lambda w: w, **more: Any) -> hs.Step:
    """A step with one parameter and its moment, beside others of the same shape or sharding."""
    wo = shaped(mesh, (4, 8, 16), P("expert", None, "fsdp"))
    params = {"wo": wo, "wi": wo, "norm": shaped(mesh, (16,), P("fsdp"))}
    state = State(params, params)

    def train(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
        total = sum(jnp.sum(body(w) if w.ndim > 1 else w) for w in state.params.values())
        return State(jax.tree.map(lambda w, m: w - m, *state), state.mean), total * jnp.sum(batch)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    options = {"donate_argnums": (0,), "out_shardings": (shardings, None)} | more
    return hs.Step(train, args=(state, shaped(mesh, (8, 16), P("fsdp"))), **options)


def specs(step: hs.Step) -> dict[str, P]:
    return {leaf.name: leaf.sharding.spec for leaf in argument_leaves(step) if leaf.sharding}


def test_names_are_those_of_the_compiled_module(mesh: Mesh) -> None:
    step = a_step(mesh, body=lambda w: w * 2)
    lowered = lowering.trace(step, mesh).lower()
    assert [leaf.name for leaf in argument_leaves(step)] == lowering.parameter_names(lowered)


def test_names_of_arguments_by_position_and_by_keyword(mesh: Mesh) -> None:
    def f(first: Any, flag: bool, *rest: Any, last: Any) -> Any:
        return first["a"] + rest[0] + rest[1] * last

    one = shaped(mesh, (8,), P("fsdp"))
    step = hs.Step(f, args=({"a": one}, True, one, one), kwargs={"last": one}, static_argnums=(1,))
    names = lowering.parameter_names(lowering.trace(step, mesh).lower())
    assert [leaf.name for leaf in argument_leaves(step)] == names


def test_the_parameter_its_moment_and_their_results_move_and_nothing_else(mesh: Mesh) -> None:
    step = a_step(mesh)
    changed = move_axis(step, MOVE)
    before, after = specs(step), specs(changed)
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {"state.params['wo']", "state.mean['wo']"}
    assert {after[name] for name in moved} == {P("expert", "fsdp", None)}
    results = changed.out_shardings[0]
    assert results.params["wo"].spec == results.mean["wo"].spec == P("expert", "fsdp", None)
    assert results.params["wi"].spec == P("expert", None, "fsdp")
    assert changed.out_shardings[1] is None


def test_shardings_given_for_a_whole_argument(mesh: Mesh) -> None:
    wo = shaped(mesh, (4, 8, 16), P("expert", None, "fsdp"))
    everywhere = wo.sharding
    step = hs.Step(
        lambda state: jax.tree.map(jnp.sin, state),
        args=(State({"wo": wo}, {"wo": wo}),),
        in_shardings=(everywhere,),
        out_shardings=everywhere,
    )
    changed = move_axis(step, MOVE)
    assert {s.spec for s in jax.tree.leaves(changed.in_shardings)} == {P("expert", "fsdp", None)}
    assert {s.spec for s in jax.tree.leaves(changed.out_shardings)} == {P("expert", "fsdp", None)}


def test_a_lone_array_and_the_result_that_takes_its_place(mesh: Mesh) -> None:
    w = shaped(mesh, (8, 16), P("fsdp"))
    step = hs.Step(lambda w, x: w - x, args=(w, shaped(mesh, (8, 16), P())), out_shardings=w.sharding)
    changed = move_axis(step, MoveAxis(parameter="w", shape=(8, 16), axes=("fsdp",), source=0, target=1))
    assert changed.out_shardings.spec == P(None, "fsdp")


def constrained(step: hs.Step, mesh: Mesh) -> list[P]:
    """The specs of all sharding constraints in the step, in order, through every inner jaxpr."""
    found: list[P] = []

    def walk(jaxpr: Any) -> None:
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            if equation.primitive.name == "sharding_constraint":
                found.append(equation.params["sharding"].spec)
            for value in equation.params.values():
                for inner in value if isinstance(value, tuple) else (value,):
                    if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                        walk(inner)

    walk(lowering.trace(step, mesh).jaxpr)
    return found


def test_constraints_to_its_layout_move_even_inside_a_loop(mesh: Mesh) -> None:
    layout = NamedSharding(mesh, P("expert", None, "fsdp"))
    one_layer = NamedSharding(mesh, P(None, "fsdp"))

    def body(w: jax.Array) -> jax.Array:
        w = jax.lax.with_sharding_constraint(w * 2, layout)

        @jax.checkpoint
        def layer(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return carry + jax.lax.with_sharding_constraint(jnp.sin(row), one_layer), None

        return jax.lax.scan(layer, jnp.zeros((8, 16)), w)[0]

    # Leading dimension unsharded, as a stack of layers is.
    w = shaped(mesh, (4, 8, 16), P(None, None, "fsdp"))
    step = hs.Step(lambda w: body(w), args=(w,))
    changed = move_axis(step, replace(MOVE, parameter="w"))
    assert constrained(step, mesh) == [P("expert", None, "fsdp"), P(None, "fsdp")]
    assert constrained(changed, mesh) == [P("expert", None, "fsdp"), P("fsdp", None)], "another layout stays"
    values = jax.device_put(jnp.arange(512.0).reshape(4, 8, 16), changed.args[0].sharding)
    assert jnp.array_equal(jax.jit(step.fn)(values), jax.jit(changed.fn)(values))


def test_a_step_without_such_constraints_keeps_its_function(mesh: Mesh) -> None:
    step = a_step(mesh)
    assert move_axis(step, MOVE).fn is step.fn


def test_a_shard_map_that_gathers_by_itself_is_refused(mesh: Mesh) -> None:
    def body(w: jax.Array) -> jax.Array:
        def gather(w: jax.Array) -> jax.Array:
            return jax.lax.all_gather(w, "fsdp", axis=2, tiled=True)

        whole = P("expert")
        return jax.shard_map(
            gather, mesh=mesh, in_specs=P("expert", None, "fsdp"), out_specs=whole, check_vma=False
        )(w)

    with pytest.raises(hs.UserError, match="a shard_map takes it in the pieces of"):
        move_axis(a_step(mesh, body), MOVE)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"parameter": "state.params['gone']"}, "the step has no argument"),
        ({"shape": (4, 8, 32)}, r"its shape is \[4, 8, 16\] now"),
        ({"source": 0, "target": 1}, "its sharding is"),
        ({"target": 2}, "no two such dimensions of 3"),
        ({"axes": ("tensor",)}, "its sharding is"),
        ({"target": 0}, "its dimension of 4 cannot be cut into 8 parts"),
    ],
)
def test_a_plan_that_no_longer_fits_says_why(change: dict[str, Any], why: str, mesh: Mesh) -> None:
    action = replace(MOVE, **change)
    with pytest.raises(hs.UserError, match=why) as error:
        hs.apply(a_step(mesh), Plan(actions=(action,)))
    assert str(error.value).startswith(f"the plan no longer fits: {action.title}")


def test_a_step_that_is_jitted_already_is_refused(mesh: Mesh) -> None:
    step = a_step(mesh)
    jitted = hs.Step(jax.jit(step.fn, donate_argnums=0), args=step.args)
    with pytest.raises(hs.UserError, match=r"jax\.jit function"):
        hs.apply(jitted, Plan(actions=(MOVE,)))


def test_rules_need_the_builder(mesh: Mesh) -> None:
    plan = Plan(actions=(LogicalRules(name="out", changes={"mlp": "fsdp"}),))

    @hs.step(rules={"mlp": None}, rule_sets={"out": {"mlp": "fsdp"}})
    def build(topology: hs.Topology, rules: dict[str, Any]) -> hs.Step:
        return hs.Step(jnp.sin, args=(shaped(topology.mesh(fsdp=8), (8,), P(rules["mlp"])),))

    topology = hs.Topology("cpu:8")
    assert hs.apply(build, plan)(topology).args[0].sharding.spec == P("fsdp")
    with pytest.raises(hs.UserError, match=r"apply the plan to the builder"):
        hs.apply(a_step(mesh), plan)
    without = hs.step(lambda topology: a_step(mesh))
    with pytest.raises(hs.UserError, match=r"no longer fits: rule set out.*there is no logical axis 'mlp'"):
        hs.apply(without, plan)(topology)
    with pytest.raises(hs.UserError, match=r"a function marked with @hs\.step"):
        hs.apply(lambda topology: a_step(mesh), plan)


def test_a_plan_without_actions_says_that_it_changes_nothing(mesh: Mesh, tmp_path: Path) -> None:
    step, place = a_step(mesh), tmp_path / "empty.toml"
    Plan().save(place)
    with pytest.warns(UserWarning, match=r"empty\.toml has no actions: the step stays as it is"):
        assert hs.apply(step, place) == step
    with pytest.warns(UserWarning, match="the plan has no actions"):
        assert hs.apply(hs.step(lambda topology: step), Plan())(hs.Topology("cpu:8")) == step


def test_a_rule_set_may_only_change_rules_that_there_are() -> None:
    with pytest.raises(hs.UserError, match="changes 'mlp', which is not in rules"):
        hs.step(rules={"embed": None}, rule_sets={"out": {"mlp": "fsdp"}})
