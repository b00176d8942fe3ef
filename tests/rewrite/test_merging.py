"""Shard maps that differentiation cut in two become one again, whatever mesh their types were told for."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

import jax
import jax.numpy as jnp
import ragged_programs as programs
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.rewrite import jaxprs
from hloscope.rewrite.merging import merge_shard_maps
from hloscope.rewrite.traced import Traced

MESH = jax.make_mesh((2,), ("expert",), axis_types=(AxisType.Auto,))


def gradient(x, w):
    mapped = jax.checkpoint(
        jax.shard_map(
            lambda x, w: programs.swish(x @ w),
            mesh=MESH,
            in_specs=(P("expert"), P("expert")),
            out_specs=P("expert"),
            check_vma=False,
        )
    )
    return jax.grad(lambda x, w: jnp.sum(jnp.square(mapped(x, w))), argnums=(0, 1))(x, w)


def traced():
    args = (jnp.ones((8, 4)), jnp.ones((8, 4)))
    return jaxprs.flatten(Traced.of(hs.Step(gradient, args=args)).closed)


def shard_maps(jaxpr) -> list:
    found = []
    for each in jaxprs.opened(jaxpr).eqns:
        if each.primitive.name == "shard_map":
            found.append(each)
        else:
            found += [inner for body in jaxprs.inner_jaxprs(each) for inner in shard_maps(body)]
    return found


def inside(equation):
    return jaxprs.opened(equation.params["jaxpr"])


def test_recomputation_and_gradient_are_one_map():
    whole = traced()
    _, recomputed, backward = shard_maps(whole)
    assert set(recomputed.outvars) & set(backward.invars)
    assert len(shard_maps(merge_shard_maps(whole))) == 2


def test_a_value_that_was_typed_without_a_mesh_is_passed_on():
    # As the zeros are that `ragged_all_to_all` sends its gradient into.
    whole = traced()
    first, second = shard_maps(whole)[-2:]
    passed = next(
        inner
        for outer, inner in zip(first.outvars, inside(first).outvars, strict=True)
        if outer in second.invars
    )
    passed.aval = jax.typeof(jnp.zeros(passed.aval.shape, passed.aval.dtype))
    taken = inside(second).invars[second.invars.index(first.outvars[inside(first).outvars.index(passed)])]
    assert passed.aval != taken.aval
    assert len(shard_maps(merge_shard_maps(whole))) == 2


def test_types_that_differ():
    inner = inside(shard_maps(traced())[0]).invars[0].aval
    plain = jax.typeof(jnp.zeros(inner.shape, inner.dtype))
    assert plain != inner
    assert jaxprs.same_type(plain, inner)
    assert not jaxprs.same_type(plain.update(dtype=jnp.dtype("int32")), inner)
    assert not jaxprs.same_type(plain.update(shape=(inner.shape[0] + 1, *inner.shape[1:])), inner)


def test_a_collective_has_no_side_effects_and_a_print_has():
    def program(x):
        jax.debug.print("{}", x)
        return lax.psum(x, "expert")

    mapped = jax.shard_map(program, mesh=MESH, in_specs=P("expert"), out_specs=P())
    body = inside(shard_maps(jax.make_jaxpr(mapped)(jnp.ones(4)))[0])
    effects = {each.primitive.name.removesuffix("_invariant"): each for each in body.eqns}
    assert not jaxprs.has_side_effects(effects["psum"])
    assert any(jaxprs.has_side_effects(each) for each in body.eqns if "debug" in each.primitive.name)


def test_what_stops_a_proof_at_a_collective_is_named():
    sizes = jnp.asarray(programs.SIZES)
    start, count = jnp.zeros(2, jnp.int32), jnp.full(2, 4, jnp.int32)

    def device(x, w):
        weighted = lax.ragged_dot(x, w, sizes) * 2.0
        return lax.ragged_all_to_all(
            lax.ragged_dot(weighted, w, sizes) * 2.0,
            jnp.zeros_like(x),
            start,
            count,
            start,
            count,
            axis_name="expert",
        )

    mapped = jax.shard_map(
        device, mesh=MESH, in_specs=(P("expert"), P("expert")), out_specs=P("expert"), check_vma=False
    )
    x = jnp.ones((2 * programs.ROWS, programs.COLUMNS))
    w = jnp.ones((2 * programs.GROUPS, programs.COLUMNS, programs.COLUMNS))
    found = programs.analysis(mapped, x, w)
    assert [cluster.refusal is None for cluster in found.clusters] == [True, False]
    assert "ragged_all_to_all is not understood" in (found.clusters[1].refusal or "")
