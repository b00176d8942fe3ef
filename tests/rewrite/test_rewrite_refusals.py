"""Programs whose dead rows are read: each must be left as it is, and a broken proof rule must be noticed."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ragged_programs as programs
from jax import lax
from ragged_programs import COLUMNS, ROWS, TOKENS, swish

from hloscope.rewrite import demand_rules
from hloscope.rewrite.demand import Reason, below

SIZES = jnp.asarray(programs.SIZES)
ROW = jnp.arange(ROWS)


def tail_is_read(x, w, sizes):
    h = swish(x)
    return lax.ragged_dot(h, w, sizes), h[-1]


def full_reader_beside(x, w, sizes):
    h = swish(x)
    return lax.ragged_dot(h, w, sizes), jnp.max(h)


def unmasked_sum(x, w, sizes):
    h = swish(x)
    return lax.ragged_dot(h, w, sizes), jnp.sum(h, axis=0)


def multiplied_mask(x, w, sizes):
    h = swish(x)
    return lax.ragged_dot(h, w, sizes), jnp.sum(h * (jnp.sum(sizes) > ROW)[:, None])


def inverted_select(x, w, sizes):
    h = swish(x)
    return lax.ragged_dot(h, w, sizes), jnp.sum(jnp.where((jnp.sum(sizes) > ROW)[:, None], 0.0, h))


def index_just_in_range(x, w, sizes):
    index = jnp.where(jnp.sum(sizes) > ROW, ROW % TOKENS, TOKENS - 1)
    return jnp.zeros((TOKENS, COLUMNS)).at[index].add(swish(x), mode="drop"), jnp.sum(sizes)


def clipped_scatter(x, w, sizes):
    index = jnp.where(jnp.sum(sizes) > ROW, ROW % TOKENS, TOKENS)
    return jnp.zeros((TOKENS, COLUMNS)).at[index].add(swish(x), mode="clip"), jnp.sum(sizes)


def index_that_wraps(x, w, sizes):
    far = jnp.int32(2**31 - 1) + ROW * 1
    index = jnp.where(jnp.sum(sizes) > ROW, ROW % TOKENS, far)
    return jnp.zeros((TOKENS, COLUMNS)).at[index].add(swish(x), mode="drop"), jnp.sum(sizes)


def handed_to_the_next_pass(x, w, sizes):
    def body(h, _):
        return swish(h) + lax.ragged_dot(h, w, sizes), None

    return lax.scan(body, x, None, length=2)[0]


def behind_a_condition(x, w, sizes):
    h = swish(x)
    return lax.cond(sizes[0] > 0, lambda h: lax.ragged_dot(h, w, sizes), lambda h: h * 2.0, h)


def sorted_rows(x, w, sizes):
    return lax.ragged_dot(jnp.sort(swish(x), axis=0), w, sizes)


REFUSED = {
    program.__name__: program
    for program in (
        tail_is_read,
        full_reader_beside,
        unmasked_sum,
        multiplied_mask,
        inverted_select,
        index_just_in_range,
        clipped_scatter,
        index_that_wraps,
        handed_to_the_next_pass,
        behind_a_condition,
        sorted_rows,
    )
}


def arguments():
    return programs.buffer(), programs.weights(), SIZES


def swishes(found) -> list:
    """The verdicts on what was put in front of the readers."""
    return [cluster for cluster in found.clusters if f"f32[{ROWS},{COLUMNS}]" in cluster.shapes]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    found = programs.analysis(REFUSED[name], *arguments())
    assert not found.replaceable, found.explain()


def test_the_verdict_names_the_step_that_reads_every_row():
    (cluster,) = programs.analysis(multiplied_mask, *arguments()).clusters
    assert [line.partition("  (")[0] for line in cluster.proof] == [
        "mul keeps rows apart",
        "reduce_sum works across rows",
    ]
    assert cluster.refusal == f"its rows are read, or may be: {cluster.proof[-1]}"


@pytest.mark.parametrize("name", ["tail_is_read", "unmasked_sum", "multiplied_mask"])
def test_the_explanation_names_the_reader_and_its_line(name: str):
    found = programs.analysis(REFUSED[name], *arguments())
    assert "test_rewrite_refusals.py:" in found.explain()
    assert found.clusters[0].refusal


def test_another_limit_than_the_sum_is_kept_apart():
    def program(x, w, sizes, other):
        h = swish(x)
        index = jnp.where(other > ROW, ROW % TOKENS, TOKENS)
        return lax.ragged_dot(h, w, sizes), jnp.zeros((TOKENS, COLUMNS)).at[index].add(h, mode="drop")

    args = (*arguments(), jnp.int32(13))
    assert programs.analysis(program, *args).replaceable
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


def test_sizes_of_another_layer_are_no_limit():
    sizes = jnp.array([[4, 0, 5], [2, 3, 1]], jnp.int32)

    def step(x, sizes, *, shift):
        def route(carry, sizes):
            return carry, (jnp.where(jnp.sum(sizes) > ROW, ROW % TOKENS, TOKENS), sizes)

        _, (index, kept) = lax.scan(route, 0, sizes)

        def use(carry, layer):
            index, kept = layer
            combined = jnp.zeros((TOKENS, COLUMNS)).at[index].add(swish(x) + 0.0 * jnp.sum(kept), mode="drop")
            return carry + combined, None

        return lax.scan(
            use, jnp.zeros((TOKENS, COLUMNS)), (index, jnp.roll(kept, shift, axis=0) if shift else kept)
        )[0]

    args = (programs.buffer(), sizes)
    own, other = (programs.analysis(partial(step, shift=shift), *args) for shift in (0, 1))
    assert own.replaceable, own.explain()
    assert not other.replaceable
    assert "cannot be computed" in other.explain()
    program = partial(step, shift=0)
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


def test_nothing_is_written_over_a_value_that_is_still_read():
    from hloscope.rewrite.rows import kernels_as, rewrite_rows

    def program(x, w, sizes):
        out = lax.ragged_dot(x, w, sizes)
        return lax.ragged_dot(out * 2.0, w, sizes) + lax.ragged_dot(out, w, sizes)

    step = programs.step_of(program, *arguments())
    with kernels_as("interpret"):
        jaxpr = jax.make_jaxpr(rewrite_rows(step).fn)(*arguments())
    calls = [each for each in jaxpr.jaxpr.eqns if each.primitive.name == "pallas_call"]
    assert len(calls) == 1
    assert not calls[0].params["input_output_aliases"]


def test_dead_rows_may_hold_anything():
    x, w, sizes = arguments()
    limit = int(np.sum(programs.SIZES))
    for value in (np.nan, np.inf, -np.inf):
        filled = x.at[limit:].set(value)
        got = programs.poisoned(programs.grouped, filled, w, sizes)
        assert programs.same(got, programs.plain(programs.grouped, x, w, sizes))


def believing(reading):
    """A broken rule: whatever a primitive does, it reads only rows below 9."""
    limit = reading.facts.symbols.literal(9)
    return [below(limit, Reason(what="believed", where=None)) for _ in reading.equation.invars]


@pytest.mark.parametrize(
    ("name", "primitive"),
    [
        ("unmasked_sum", "reduce_sum"),
        ("full_reader_beside", "reduce_max"),
        ("clipped_scatter", "scatter-add"),
        ("sorted_rows", "sort"),
        ("tail_is_read", "squeeze"),
    ],
)
def test_a_broken_rule_is_caught(monkeypatch, name: str, primitive: str):
    """The adversary is let through then, and NaN reaches its results."""
    program, args = REFUSED[name], arguments()
    rules = {primitive: believing}
    if name == "tail_is_read":
        rules["slice"] = believing
    monkeypatch.setattr(demand_rules, "RULES", demand_rules.RULES | rules)
    assert programs.analysis(program, *args).replaceable
    assert not programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int16])
def test_group_sizes_in_a_type_that_wraps_around_prove_nothing(dtype):
    def program(x, w, sizes):
        return lax.ragged_dot(swish(x), w, sizes), jnp.cumsum(sizes)[-1]

    (cluster,) = programs.analysis(
        program, programs.buffer(), programs.weights(), SIZES.astype(dtype)
    ).clusters
    assert cluster.refusal is not None
    assert "whose sums may wrap around" in cluster.refusal


def test_row_numbers_that_wrap_around_bound_nothing():
    rows = 320
    x = jax.random.normal(jax.random.key(0), (rows, COLUMNS))

    def program(x, w, end, dtype):
        kept = (lax.iota(dtype, rows) < end.astype(dtype))[:, None]
        return jnp.where(kept, jnp.tanh(swish(x)) @ w[0], 0.0) @ w[1]

    args = (x, programs.weights(), jnp.int32(9))
    for dtype, found in ((jnp.uint8, 0), (jnp.int8, 0), (jnp.int32, 1)):
        clusters = programs.analysis(partial(program, dtype=dtype), *args).clusters
        assert len([c for c in clusters if c.refusal is None]) == found, dtype


@pytest.mark.parametrize("dtype", [jnp.float16])
def test_what_the_kernel_does_not_read_is_refused_off_a_tpu_too(dtype):
    def program(x, w, sizes):
        return lax.ragged_dot(swish(x), w, sizes)

    args = (programs.buffer().astype(dtype), programs.weights().astype(dtype), SIZES)
    (cluster,) = programs.analysis(program, *args).clusters
    assert cluster.refusal is not None
    assert "not float16" in cluster.refusal
