"""Row numbers that a loop saves: computed again where they follow from others that it saves, kept where not."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
import ragged_programs as programs
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

from hloscope.rewrite import jaxprs
from hloscope.rewrite.analysis import Place, bodies
from hloscope.rewrite.rows import kernels_as, rewrite_rows

LAYERS, TOP_K = 3, 2
CHOICES = jnp.stack(
    [jnp.roll(jnp.array([0, 3, 2, 0, 3, 3, 2, 0, 2, 3, 0, 2], jnp.int32), layer) for layer in range(LAYERS)]
)
ARGS = ({"w": programs.weights()}, programs.buffer()[: programs.TOKENS], CHOICES)


def follows(slot, limit):
    return slot // TOP_K, programs.TOKENS


def is_another_half(slot, limit):
    # What slots say of the dead rows is lost: here they are read.
    return slot // TOP_K, slot // TOP_K % programs.TOKENS


def is_known_elsewhere(slot, limit):
    # Of the order that the slots had before, nothing is saved.
    return jnp.flip(slot) // TOP_K, programs.TOKENS


def layer(params, token_of, tokens, choice):
    order = jnp.argsort(choice, stable=True)
    sizes = jnp.bincount(choice, length=programs.GROUPS + 1)[: programs.GROUPS].astype(jnp.int32)
    limit, row = jnp.sum(sizes), jnp.arange(programs.ROWS)
    order = jnp.pad(order, (0, programs.ROWS - order.shape[0]))
    slot = jnp.where(row < limit, order, programs.TOKENS * TOP_K + row)
    token, dead = token_of(order, limit)
    token = jnp.where(row < limit, token, dead)
    sizes, slot, token = (checkpoint_name(value, "routing") for value in (sizes, slot, token))
    packed = tokens.at[token].get(mode="clip")
    weight = jnp.linspace(0.1, 1, programs.TOKENS * TOP_K).at[slot].get(mode="clip")
    out = lax.ragged_dot(programs.swish(lax.ragged_dot(packed, params["w"], sizes)), params["w"], sizes)
    weighted = jnp.where((row < limit)[:, None], out * weight[:, None], 0)
    return tokens + jnp.zeros_like(tokens).at[token].add(weighted, mode="drop"), None


def loss(params, tokens, choices, *, token_of=follows, sharded=False):
    run = partial(layer, params, token_of)
    if sharded:
        inside = jax.shard_map(
            lambda params, tokens, choice: layer(params, token_of, tokens, choice)[0],
            mesh=Mesh(jax.devices("cpu")[:1], ("expert",)),
            in_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec()),
            out_specs=PartitionSpec(),
        )

        def run(tokens, choice):
            return inside(params, tokens, choice), None

    saved = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names("routing"))
    return jnp.sum(jnp.square(lax.scan(saved, tokens, choices)[0]))


def read_back(step) -> int:
    """Vectors of row numbers that the loops of a rewritten step read back, and that anybody in them needs."""
    with kernels_as("interpret"):
        closed = jax.make_jaxpr(rewrite_rows(step).fn)(*step.args)
    scopes = [scope for scope, _ in bodies(jaxprs.opened(closed), Place(path=(), executions=1))]
    loops = [each for scope in scopes for each in scope.eqns if each.primitive.name == "scan"]
    return sum(needed(var, jaxprs.opened(loop.params["jaxpr"])) for loop in loops for var in stacked(loop))


def stacked(loop):
    first = sum(jaxprs.scan_counts(loop))
    for var in jaxprs.opened(loop.params["jaxpr"]).invars[first:]:
        if var.aval.shape == (programs.ROWS,) and var.aval.dtype == jnp.int32:
            yield var


def needed(var, body) -> bool:
    for equation in body.eqns:
        if var in [atom for atom in equation.invars if not jaxprs.is_literal(atom)]:
            scopes = jaxprs.inner_jaxprs(equation)
            inner = [jaxprs.opened(scope) for scope in scopes]
            if not inner or any(needed(scope.invars[equation.invars.index(var)], scope) for scope in inner):
                return True
    return False


def gradient(**kwargs):
    return jax.value_and_grad(partial(loss, **kwargs), argnums=(0, 1))


@pytest.mark.parametrize("sharded", [False, True])
def test_a_token_that_follows_from_its_slot_is_not_saved(sharded: bool):
    step = programs.step_of(gradient(sharded=sharded), *ARGS)
    assert read_back(step) == 1, "the slots"
    assert "computed again" in programs.analysis(step.fn, *ARGS).explain()
    assert programs.same(programs.poisoned(step.fn, *ARGS), programs.plain(step.fn, *ARGS))


@pytest.mark.parametrize("token_of", [is_another_half, is_known_elsewhere])
def test_a_token_that_does_not_follow_from_its_slot_is_saved(token_of):
    step = programs.step_of(gradient(token_of=token_of), *ARGS)
    assert read_back(step) == 2
    assert programs.same(programs.poisoned(step.fn, *ARGS), programs.plain(step.fn, *ARGS))


def test_the_stack_is_gone_from_the_compiled_loop():
    def stacks(step) -> int:
        text = step.jit().lower(*step.args).compile().as_text()
        return sum(
            f"s32[{LAYERS},{programs.ROWS}]" in line
            for line in text.splitlines()
            if "dynamic-update-slice(" in line
        )

    step = programs.step_of(gradient(), *ARGS)
    assert (stacks(step), stacks(rewrite_rows(step))) == (2, 1)


ORDERS = jnp.stack([jnp.roll(jnp.arange(programs.ROWS) * 7 % 12, layer) for layer in range(LAYERS)])
SIZES = jnp.array([[4, 0, 5], [1, 2, 3], [0, 16, 0]], jnp.int32)


def two_loops(rows_of, token_of, between=lambda *stacks: stacks):
    """A program of two loops: one stacks vectors of row numbers, another gathers by what it makes of them."""

    def product(params, tokens, token, sizes):
        packed = tokens.at[token].get(mode="clip")
        out = lax.ragged_dot(programs.swish(packed), params["w"], sizes)
        return jnp.sum(jnp.where((jnp.arange(programs.ROWS) < jnp.sum(sizes))[:, None], out, 0))

    def program(params, tokens, orders, sizes):
        def first(total, layer):
            rows = rows_of(*layer)
            return total + product(params, tokens, rows[0], layer[1]), rows

        def second(total, layer):
            token = token_of(*layer[1:])
            return total + product(params, tokens, token, layer[0]), ~token

        total, stacks = lax.scan(first, 0.0, (orders, sizes))
        return lax.scan(second, total, (sizes, *between(*stacks)))

    return program, ({"w": programs.weights()}, programs.buffer()[: programs.TOKENS], ORDERS, SIZES)


def below_the_limit(order, sizes):
    row, limit = jnp.arange(programs.ROWS), jnp.sum(sizes)
    return jnp.where(row < limit, order, 100 + row), jnp.where(row < limit, (order - 5) // 2, programs.TOKENS)


def one_value_twice(order, sizes):
    return order + 1, lax.optimization_barrier(order + 1)


def add_inside(first, second):
    # One stack under two names: neither can be computed from the other.
    inside = jax.shard_map(
        lambda slot, *tokens: slot + tokens[0] * tokens[1],
        mesh=Mesh(jax.devices("cpu")[:1], ("expert",)),
        in_specs=(PartitionSpec(),) * 3,
        out_specs=PartitionSpec(),
    )
    return inside(first, second, second)


def in_shard_map(order, sizes):
    return jax.shard_map(
        lambda order: (order, order // TOP_K),
        mesh=Mesh(jax.devices("cpu")[:1], ("expert",)),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(),
    )(order)


@pytest.mark.parametrize(
    ("rows_of", "token_of", "between", "again"),
    [
        (below_the_limit, jnp.add, lambda *stacks: stacks, 1),
        (one_value_twice, jnp.add, lambda *stacks: stacks, 1),
        (in_shard_map, add_inside, lambda *stacks: stacks, 2),
        (below_the_limit, jnp.add, lambda slot, token: (slot, jnp.roll(token, 1, axis=0)), 0),
        (below_the_limit, jnp.add, lambda slot, token: (slot, token[::-1]), 0),
    ],
    ids=["of one pass", "one value twice", "one stack twice", "of the pass before", "of another pass"],
)
def test_only_what_is_saved_of_the_same_pass_is_computed_from(rows_of, token_of, between, again: int):
    program, args = two_loops(rows_of, token_of, between)
    assert len(programs.analysis(program, *args).recomputed) == again
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


def test_long_arithmetic_is_saved_and_takes_no_time_to_find():
    def rows_of(order, sizes):
        far = order
        for _ in range(600):
            far = far + far
        return order, far

    program, args = two_loops(rows_of, jnp.add)
    assert not programs.analysis(program, *args).recomputed
