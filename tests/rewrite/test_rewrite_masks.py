"""Masks that hide nothing: fill values that only guard dead rows and wraps of indices that are never negative are
dropped; those that a row may need are kept.
"""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import pytest
import ragged_programs as programs
from jax import lax
from jax.lax import GatherScatterMode

from hloscope.rewrite import jaxprs, marks
from hloscope.rewrite.analysis import Place, bodies
from hloscope.rewrite.limits import Limits
from hloscope.rewrite.marks import Reads
from hloscope.rewrite.ranges import Ranges, RangesBehind, RangesBelow
from hloscope.rewrite.rows import kernels_as, rewrite_rows
from hloscope.rewrite.symbols import Symbols

# Of 2 * TOKENS slots, those of group 3 are another device's.
CHOICE = jnp.array([0, 3, 2, 0, 3, 3, 2, 0, 2, 3, 0, 2], jnp.int32)
ARGS = ({"w": programs.weights()}, programs.buffer()[: programs.TOKENS], CHOICE)


def modes(step) -> list[str]:
    """The modes of the gathers of whole rows, in all scopes of a rewritten step."""
    with kernels_as("interpret"):
        jaxpr = jax.make_jaxpr(rewrite_rows(step).fn)(*step.args)
    return [
        each.params["mode"].name
        for each in jaxpr.jaxpr.eqns
        if each.primitive.name == "gather" and each.outvars[0].aval.shape == (programs.ROWS, programs.COLUMNS)
    ]


def test_masks_go_forward_and_backward_where_indices_are_in_range():
    step = programs.step_of(jax.value_and_grad(programs.sorted_moe_loss, argnums=(0, 1)), *ARGS)
    assert modes(step) == [GatherScatterMode.CLIP.name] * 2
    assert "fills dead rows only" in programs.analysis(step.fn, *ARGS).explain()
    assert programs.same(programs.poisoned(step.fn, *ARGS), programs.plain(step.fn, *ARGS))


@pytest.mark.parametrize("layers", [3])
def test_masks_go_in_loops_too(layers: int):
    params, tokens, choice = ARGS

    @jax.checkpoint
    def layer(tokens, choice):
        return tokens + 1e-3 * programs.sorted_moe_loss(params, tokens, choice), None

    def loss(tokens, choices):
        return jnp.sum(lax.scan(layer, tokens, choices)[0])

    args = (tokens, jnp.stack([jnp.roll(choice, i) for i in range(layers)]))
    step = programs.step_of(jax.value_and_grad(loss), *args)
    assert len(programs.analysis(step.fn, *args).masks) == 3, "forward, recomputed, backward"
    assert programs.same(programs.poisoned(step.fn, *args), programs.plain(step.fn, *args))


def any_index(params, tokens, choice):
    token = jnp.where(
        jnp.arange(programs.ROWS) < jnp.sum(choice[:3]), jnp.tile(choice, 2)[: programs.ROWS], 6
    )
    packed = tokens.at[token].get(mode="fill", fill_value=0)
    return lax.ragged_dot(programs.swish(packed), params["w"], choice[:3])


def too_far(params, tokens, choice):
    return programs.sorted_moe_loss(params, tokens[:5], choice)


def read_beyond(params, tokens, choice):
    order = jnp.pad(jnp.argsort(choice), (0, 4))
    token = jnp.where(jnp.arange(programs.ROWS) < choice[0], order // 2, programs.TOKENS)
    packed = tokens.at[token].get(mode="fill", fill_value=0)
    sizes = jnp.bincount(choice, length=programs.GROUPS).astype(jnp.int32)
    return lax.ragged_dot(programs.swish(packed), params["w"], sizes)


@pytest.mark.parametrize("program", [any_index, too_far, read_beyond])
def test_masks_stay_where_a_row_that_is_read_may_need_them(program):
    found = programs.analysis(program, *ARGS)
    assert found.replaceable, found.explain()
    assert not found.masks
    assert programs.same(programs.poisoned(program, *ARGS), programs.plain(program, *ARGS))


def test_a_gather_that_is_read_whole_keeps_its_mask():
    def program(params, tokens, choice):
        loss = programs.sorted_moe_loss(params, tokens, choice)
        token = jnp.pad(jnp.argsort(choice), (0, 4)) // 2
        return loss, jnp.sum(tokens.at[token].get(mode="fill", fill_value=0))

    assert modes(programs.step_of(program, *ARGS)) == ["CLIP", "FILL_OR_DROP"]


def wraps(step) -> int:
    """Selects of integers over the buffer's rows, in all scopes of a rewritten step, that read their index's sign."""
    with kernels_as("interpret"):
        jaxpr = jax.make_jaxpr(rewrite_rows(step).fn)(*step.args)
    scopes = [scope for scope, _ in bodies(jaxpr.jaxpr, Place(path=(), executions=1))]
    signs = {
        each.outvars[0]
        for scope in scopes
        for each in scope.eqns
        if each.primitive.name == "lt" and jaxprs.is_literal(each.invars[1]) and each.invars[1].val == 0
    }
    return sum(
        each.primitive.name == "select_n"
        and each.invars[0] in signs
        and each.outvars[0].aval.shape == (programs.ROWS,)
        for scope in scopes
        for each in scope.eqns
    )


def test_an_index_that_is_never_negative_is_not_wrapped():
    step = programs.step_of(jax.value_and_grad(programs.sorted_moe_loss, argnums=(0, 1)), *ARGS)
    assert wraps(step) == 0
    assert "takes one side in every row" in programs.analysis(step.fn, *ARGS).explain()
    assert programs.same(programs.poisoned(step.fn, *ARGS), programs.plain(step.fn, *ARGS))


def from_the_end(params, tokens, choice):
    # Rows count from the end of the tokens: each index is negative.
    order = jnp.pad(jnp.argsort(choice), (0, 4))
    live = jnp.arange(programs.ROWS) < jnp.sum(choice[:3])
    token = jnp.where(live, order // 2 - programs.TOKENS, -1)
    packed = tokens.at[token].get(mode="clip")
    return lax.ragged_dot(programs.swish(packed), params["w"], choice[:3])


def perhaps_negative(params, tokens, choice):
    token = jnp.where(jnp.arange(programs.ROWS) < jnp.sum(choice[:3]), choice[0] - 1, 2)
    packed = tokens.at[token].get(mode="clip")
    return lax.ragged_dot(programs.swish(packed), params["w"], choice[:3])


@pytest.mark.parametrize(("program", "kept"), [(from_the_end, 0), (perhaps_negative, 1)])
def test_an_index_that_may_be_negative_is_wrapped(program, kept: int):
    assert wraps(programs.step_of(program, *ARGS)) == kept
    assert programs.same(programs.poisoned(program, *ARGS), programs.plain(program, *ARGS))


def as_truth_values(x):
    # Each is True, 1 as a number: none is the 2 or more that it came from.
    return (jnp.arange(programs.COLUMNS) + 2).astype(bool).astype(jnp.int32) >= 2


def along_another_axis(x):
    # Rows of a column, of which there are more than columns.
    return lax.top_k(x, programs.COLUMNS, axis=0)[1] >= programs.COLUMNS


@pytest.mark.parametrize("mask_of", [as_truth_values, along_another_axis])
def test_a_mask_of_numbers_that_only_seem_small_or_large_stays(mask_of):
    def program(params, x, sizes):
        mask = mask_of(x)
        return programs.grouped(x, params["w"], sizes), jnp.where(mask, 1, jnp.cumsum(mask, axis=0))

    args = (ARGS[0], programs.buffer(), jnp.asarray(programs.SIZES))
    assert not programs.analysis(program, *args).wraps
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


def test_a_registered_call_is_not_looked_into(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(marks, "_registered", {"own_kernel": Reads(below_sum={0: 2}, below={})})

    @jax.jit
    def own_kernel(x, w, sizes):
        def twice(total, row):
            return total + row[0] * row[1], row[0] + 1

        row = jnp.arange(programs.ROWS)
        index = jnp.where(row < programs.ROWS, row, row - 1)
        _, stacks = lax.scan(lambda total, row: (total, (row, row + 1)), 0, jnp.stack([index, index]))
        total, _ = lax.scan(twice, index, stacks)
        return programs.grouped(x[index], w, sizes), total

    def program(params, x, sizes):
        return own_kernel(programs.swish(x), params["w"], sizes)

    args = (ARGS[0], programs.buffer(), jnp.asarray(programs.SIZES))
    found = programs.analysis(program, *args)
    assert (found.wraps, found.recomputed) == ((), ())


# Ranges by themselves.


@pytest.fixture
def limits() -> Limits:
    return Limits(Symbols())


def test_a_mask_on_the_limit_decides_below_it_and_behind_it(limits: Limits):
    make = partial(limits.symbols.make, shape=(8,), dtype="int32")
    limit = limits.symbols.atom("limit", (), "int32", frozenset())
    other = limits.symbols.atom("other", (), "int32", frozenset())
    row = make("iota", params=(("dimension", 0),))

    def spread(value):
        return make("broadcast_in_dim", (value,), (("broadcast_dimensions", ()),))

    def chosen(bound):
        mask = limits.symbols.make("lt", (row, spread(bound)), shape=(8,), dtype="bool")
        return make("select_n", (mask, spread(limits.symbols.literal(99)), row))

    assert RangesBelow(limits, limit, 8).range(chosen(limit)) == (0, 7)
    assert RangesBehind(limits, limit, 8).range(chosen(limit)) == (99, 99)
    assert Ranges(limits).range(chosen(limit)) == (0, 99)
    assert RangesBelow(limits, limit, 8).range(chosen(other)) == (0, 99)


def test_arithmetic_may_be_deeper_than_the_stack_of_python(limits: Limits):
    value = limits.symbols.make("iota", params=(("dimension", 0),), shape=(8,), dtype="int32")
    one = limits.symbols.literal(1)
    for _ in range(2000):
        value = limits.symbols.make("add", (value, one), shape=(8,), dtype="int32")
    assert Ranges(limits).range(value) == (2000, 2007)


def test_rows_in_another_order_keep_their_range_and_no_more(limits: Limits):
    limit = limits.symbols.atom("limit", (), "int32", frozenset())
    moved = limits.symbols.atom("moved", (8,), "int32", frozenset())
    source = limits.symbols.make("iota", params=(("dimension", 0),), shape=(8,), dtype="int32")
    assert RangesBelow(limits, limit, 8).range(moved) is None
    limits.symbols.moved_rows(moved.params, source)
    assert RangesBelow(limits, limit, 8).range(moved) == (0, 7)
    two = [limits.symbols.atom(name, (8,), "int32", frozenset()) for name in ("moved", "also moved")]
    assert two[0] is moved
    assert two[1] is not moved


@pytest.mark.parametrize(
    "masked",
    [
        lambda h, live: jnp.where(live[:, None], h, 0),
        lambda h, live: h * jnp.where(live, 1.0, 0.0)[:, None],
        lambda h, live: jnp.where(~live[:, None], 1.0, h),
    ],
)
def test_a_mask_on_row_numbers_goes_into_the_kernel(masked):
    def program(x, w, sizes):
        live = jnp.arange(programs.ROWS) < jnp.sum(sizes) // 2
        return lax.ragged_dot(masked(programs.swish(x), live), w, sizes)

    args = (programs.buffer(), programs.weights(), jnp.asarray(programs.SIZES))
    step = programs.step_of(program, *args)
    plain = programs.run(step, *args)
    for mode in ("poisoned", "interpret"):
        with kernels_as(mode):
            changed = rewrite_rows(step)
        assert programs.same(programs.run(changed, *args), plain)
    assert [c.refusal for c in programs.analysis(program, *args).clusters] == [None]
