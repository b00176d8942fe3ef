"""Steps rewritten with valid-row kernels: the same results with NaN in every row that a kernel may leave unwritten."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
import ragged_programs as programs
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.capture import lowering
from hloscope.errors import UserError
from hloscope.rewrite import facts
from hloscope.rewrite.rows import find_row_clusters, kernels_as, rewrite_rows

SIZES = jnp.asarray(programs.SIZES)


def kernels(analysis) -> list[str]:
    return [f"{cluster.phase} {cluster.kernel}" for cluster in analysis.replaceable]


def test_a_grouped_matmul_ends_its_rows():
    args = (programs.buffer(), programs.weights(), SIZES)
    found = programs.analysis(programs.grouped, *args)
    assert kernels(found) == ["forward valid_rows"]
    assert "sum of its group sizes" in found.explain()
    assert programs.same(programs.poisoned(programs.grouped, *args), programs.plain(programs.grouped, *args))


def test_a_layer_and_its_gradient():
    args = programs.moe_args()
    step = jax.value_and_grad(programs.moe_loss, argnums=(0, 1))
    found = programs.analysis(step, *args)
    assert set(kernels(found)) >= {
        "forward glu_rows",
        "backward glu_rows_bwd",
        "backward unsort_bwd_rows",
    }, found.explain()
    assert programs.same(programs.poisoned(step, *args), programs.plain(step, *args))


def test_a_limit_beyond_int32_is_behind_all_rows():
    def program(x, w, sizes, end):
        h = programs.swish(x)
        live = jnp.arange(programs.ROWS, dtype=end.dtype) < end
        return lax.ragged_dot(h, w, sizes), jnp.where(live[:, None], h, 0)

    args = (programs.buffer(), programs.weights(), SIZES, jnp.uint32(2**32 - 1))
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))


def test_empty_groups():
    params, tokens, index, _ = programs.moe_args()
    nothing = jnp.zeros(programs.GROUPS, jnp.int32)
    step = jax.value_and_grad(programs.moe_loss, argnums=(0, 1))
    args = (params, tokens, index, nothing)
    assert programs.same(programs.poisoned(step, *args), programs.plain(step, *args))


def test_kernels_interpreted_write_in_place_of_what_dies():
    args = programs.moe_args()
    step = programs.step_of(jax.value_and_grad(programs.moe_loss, argnums=(0, 1)), *args)
    with kernels_as("interpret"):
        rewritten = rewrite_rows(step)
    jaxpr = jax.make_jaxpr(rewritten.fn)(*args)
    found = {
        equation.params["name"]: bool(equation.params["input_output_aliases"])
        for equation in jaxpr.jaxpr.eqns
        if equation.primitive.name == "pallas_call"
    }
    assert found["glu_rows_bwd_silu"]
    assert found["unsort_bwd_rows"]
    assert not found["glu_rows_silu"]
    got, expected = rewritten.fn(*args), step.fn(*args)
    assert all(
        bool(jnp.allclose(a, b, rtol=1e-5, atol=1e-5))
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    )


def test_under_checkpoint_scan_and_jit():
    params, tokens, index, sizes = programs.moe_args()
    layers = 2
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * layers), params)

    @jax.checkpoint
    def layer(tokens, params):
        return tokens + programs.moe_loss(params, tokens, index, sizes) * 1e-4, None

    def loss(stacked, tokens):
        return jnp.sum(lax.scan(layer, tokens, stacked)[0])

    step = jax.jit(jax.value_and_grad(loss))
    found = programs.analysis(step, stacked, tokens)
    assert {"forward glu_rows", "recompute glu_rows", "backward glu_rows_bwd"} <= set(kernels(found)), (
        found.explain()
    )
    assert all(cluster.executions == layers for cluster in found.replaceable)
    assert programs.same(programs.poisoned(step, stacked, tokens), programs.plain(step, stacked, tokens))


def test_only_the_clusters_that_were_asked_for():
    args = programs.moe_args()
    step = programs.step_of(jax.grad(programs.moe_loss), *args)
    keys = [cluster.key for cluster in find_row_clusters(step).replaceable]
    with kernels_as("interpret"):
        rewritten = rewrite_rows(step, keys[:1])
    text = str(jax.make_jaxpr(rewritten.fn)(*args))
    assert text.count("pallas_call[") == 1
    assert rewrite_rows(step, []) is step


def test_a_stale_key_is_refused():
    step = programs.step_of(programs.grouped, programs.buffer(), programs.weights(), SIZES)
    with pytest.raises(UserError, match="no such cluster"):
        rewrite_rows(step, ["forward/glu_rows/bf16[1,1]/gone.py:1"])


def test_a_step_without_ragged_buffers_stays_itself():
    step = programs.step_of(programs.swish, programs.buffer())
    assert rewrite_rows(step) is step
    assert "no ragged buffer" in find_row_clusters(step).explain()


def test_donation_and_tree_of_a_jitted_step_stay():
    def program(state, sizes):
        return {"x": programs.grouped(state["x"], state["w"], sizes)}, state["w"]

    state = {"x": programs.buffer(), "w": programs.weights()}
    step = hs.Step(jax.jit(program, donate_argnums=0), args=(state, SIZES))
    with kernels_as("poisoned"):
        rewritten = rewrite_rows(step)
    traced = rewritten.fn.trace(state, SIZES)
    assert [
        info.donated for info in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
    ] == [
        True,
        True,
        False,
    ]
    assert jax.tree.structure(traced.out_info) == jax.tree.structure(jax.eval_shape(program, state, SIZES))


def test_names_shardings_and_donation_stay():
    mesh = hs.Topology("cpu:8").mesh(data=8)
    whole, halves = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, None, "data"))

    def shaped(array, sharding):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    def train(state, sizes, *, scale):
        return {"w": state["w"] * scale}, programs.grouped(state["x"], state["w"], sizes)

    state = {"x": shaped(programs.buffer(), whole), "w": shaped(programs.weights(), halves)}
    step = hs.Step(
        train,
        args=(state, shaped(SIZES, whole)),
        kwargs={"scale": shaped(jnp.float32(0), whole)},
        donate_argnums=(0,),
        out_shardings=({"w": halves}, whole),
    )
    with kernels_as("poisoned"):
        rewritten = rewrite_rows(step)
    assert rewritten is not step
    told = [_told_of(each) for each in (step, rewritten)]
    assert told[0] == told[1]
    assert told[0]["aliases"]
    assert told[0]["names"] == ["state['w']", "state['x']", "sizes", "scale"]
    assert rewritten.donate_argnums == (0,)


def _told_of(step):
    traced = lowering.trace(step, None)
    lowered = traced.lower()
    compiled = lowered.compile()
    header = compiled.as_text().splitlines()[0]
    given = jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
    return {
        "names": lowering.parameter_names(lowered),
        "donated": [info.donated for info in given],
        "aliases": header.partition("input_output_alias=")[2].partition("entry_computation")[0],
        "in": [s.spec for s in jax.tree.leaves(compiled.input_shardings)],
        "out": [s.spec for s in jax.tree.leaves(compiled.output_shardings)],
    }


def test_a_mark_ends_the_rows_of_an_unknown_reader():
    def program(x, limit, *, marked):
        h = programs.swish(x)
        if marked:
            h = hs.valid_rows(h, limit)
        return jnp.sum(jnp.sort(h, axis=0)[:1])

    args = (programs.buffer(), jnp.int32(9))
    assert not programs.analysis(lambda x, n: program(x, n, marked=False), *args).replaceable
    marked = programs.analysis(lambda x, n: program(x, n, marked=True), *args)
    assert kernels(marked) == ["forward valid_rows"]
    assert "user promises" in marked.explain()


def test_a_mark_is_an_identity_in_every_transformation():
    x, limit = programs.buffer(), jnp.int32(9)

    def loss(x):
        return jnp.sum(jnp.square(hs.valid_rows(x, limit)))

    assert programs.same(jax.jit(hs.valid_rows)(x, limit), x)
    assert programs.same(jax.grad(loss)(x), 2 * x)
    assert programs.same(jax.jit(jax.grad(jax.checkpoint(loss)))(x), 2 * x)
    assert programs.same(jax.vmap(hs.valid_rows, in_axes=(0, None))(jnp.stack([x, x]), limit)[0], x)
    with pytest.raises(UserError, match="one limit"):
        jax.vmap(hs.valid_rows)(jnp.stack([x, x]), jnp.stack([limit, limit]))
    with pytest.raises(UserError, match="one integer"):
        hs.valid_rows(x, 1.5)
    text = jax.jit(hs.valid_rows).lower(x, limit).compile().as_text()
    assert "custom-call" not in str(text)


def test_a_registered_demand(monkeypatch):
    from hloscope.rewrite import marks

    monkeypatch.setattr(marks, "_registered", {})

    @jax.jit
    def own_gmm(x, w, sizes):
        valid = jnp.arange(x.shape[0])[:, None] < jnp.sum(sizes)
        return jnp.where(valid, x, 0) @ w[0]

    def program(x, w, sizes):
        return own_gmm(programs.swish(x), w, sizes)

    args = (programs.buffer(), programs.weights(), SIZES)
    hs.register_demand("own_gmm", below_sum={0: 2})
    found = programs.analysis(program, *args)
    assert kernels(found) == ["forward valid_rows"]
    assert "own_gmm reads rows below the sum" in found.explain()
    assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))
    with pytest.raises(UserError, match="no position"):
        hs.register_demand("own_gmm", below_sum={-1: 2})


def test_a_rewritten_step_takes_arguments_by_position_and_by_name():
    def program(x, w, *, sizes):
        return lax.ragged_dot(programs.swish(x), w, sizes)

    x, w, sizes = programs.buffer(), programs.weights(), jnp.asarray(programs.SIZES)
    plain = program(x, w, sizes=sizes)
    step = hs.Step(program, args=(x, w), kwargs={"sizes": sizes})
    with kernels_as("poisoned"):
        changed = rewrite_rows(step)
    for result in (
        changed.fn(x, w, sizes=sizes),
        changed.fn(x, w=w, sizes=sizes),
        changed.fn(w=w, x=x, sizes=sizes),
    ):
        assert programs.same(result, plain)
    with pytest.raises(hs.UserError, match="the rewritten step takes"):
        changed.fn(x, sizes=sizes)


@pytest.mark.parametrize(
    ("spec", "one"), [(P("fsdp"), False), (P(("dp", "fsdp")), True), (P("dp", "fsdp"), True)]
)
def test_axes_are_told_apart_by_their_whole_names(spec, one):
    # "dp" stands in "fsdp", too.
    equation = SimpleNamespace(params={"check_vma": False, "manual_axes": ("dp", "fsdp")})
    assert facts._one_value_per_shard(equation, spec) is one
