"""fused_glu under every transformation of a training step: the gradient of the reference, one residual."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from row_cases import bits, normal

from hloscope_kernels import fused_glu, glu_rows, glu_rows_bwd

ROWS, MLP, LIMIT = 96, 128, 70
INTERPRET = partial(fused_glu, implementation="interpret")
TRANSFORMS = {
    "plain": lambda function: function,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "jit of checkpoint": lambda function: jax.jit(jax.checkpoint(function)),
}


@pytest.fixture(scope="module")
def operands():
    return normal(0, (ROWS, 2 * MLP), jnp.bfloat16), normal(1, (ROWS, MLP), jnp.bfloat16)


def gradient_of(function, fused, cotangent):
    out, pullback = jax.vjp(function, fused)
    return out, pullback(cotangent)[0]


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_the_gradient_is_that_of_the_rows(operands, activation, transform, implementation):
    fused, cotangent = operands
    function = TRANSFORMS[transform](
        lambda fused: fused_glu(fused, LIMIT, activation, implementation=implementation)
    )
    out, gradient = gradient_of(function, fused, cotangent)
    want = glu_rows(fused, LIMIT, activation, implementation="xla")
    want_gradient = glu_rows_bwd(fused, cotangent, LIMIT, activation, implementation="xla")
    np.testing.assert_allclose(out, want, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(gradient, want_gradient, rtol=1e-2, atol=1e-2)
    assert not np.asarray(gradient[LIMIT:], np.float32).any()


def test_it_is_the_gradient(operands):
    """Against finite differences, in float32 and for all rows."""
    fused = operands[0][:8].astype(jnp.float32)
    jax.test_util.check_grads(
        lambda fused: fused_glu(fused, 8, "silu", implementation="xla"), (fused,), order=1, modes=["rev"]
    )


def test_only_the_buffer_is_kept(operands):
    fused, _ = operands
    _, pullback = jax.vjp(lambda fused: INTERPRET(fused, LIMIT), fused)
    kept = [leaf.shape for leaf in jax.tree.leaves(pullback)]
    assert sorted(kept) == [(), (ROWS, 2 * MLP)]


def test_scan_over_layers(operands):
    fused, cotangent = operands
    layers, limits = jnp.stack([fused, fused * 0.5]), jnp.array([LIMIT, 33])

    def loss(function, layers):
        def layer(total, layer_and_limit):
            out = function(*layer_and_limit)
            return total + jnp.sum(out.astype(jnp.float32) * cotangent.astype(jnp.float32)), None

        return jax.lax.scan(layer, 0.0, (layers, limits))[0]

    got = jax.jit(jax.grad(partial(loss, INTERPRET)))(layers)
    want = jax.jit(jax.grad(partial(loss, partial(fused_glu, implementation="xla"))))(layers)
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("limit_axis", [None, 0])
def test_vmap(operands, limit_axis):
    fused, cotangent = operands
    batch, cotangents = jnp.stack([fused, fused * 0.5, -fused]), jnp.stack([cotangent] * 3)
    limit = jnp.int32(LIMIT) if limit_axis is None else jnp.array([LIMIT, 0, ROWS])

    def both(function):
        def one(fused, cotangent, limit):
            return gradient_of(lambda fused: function(fused, limit), fused, cotangent)

        return jax.jit(jax.vmap(one, (0, 0, limit_axis)))(batch, cotangents, limit)

    for got, want in zip(both(INTERPRET), both(partial(fused_glu, implementation="xla")), strict=True):
        np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.parametrize("limit_spec", [PartitionSpec("expert"), PartitionSpec()])
@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_shard_map(operands, limit_spec, implementation):
    fused, cotangent = operands
    mesh = Mesh(np.array(jax.devices()[:1]), ("expert",))
    rows = PartitionSpec("expert")

    def per_device(fused, cotangent, limit):
        function = partial(fused_glu, limit=limit[0], implementation=implementation)
        return gradient_of(function, fused, cotangent)

    def mapped(check):
        return jax.jit(
            jax.shard_map(
                per_device,
                mesh=mesh,
                in_specs=(rows, rows, limit_spec),
                out_specs=(rows, rows),
                check_vma=check,
            )
        )

    arguments = (fused, cotangent, jnp.array([LIMIT]))
    # What varies over the mesh is right; jax's interpreter itself does not pass that check when it runs.
    mapped(check=True).trace(*arguments)
    out, gradient = mapped(check=False)(*arguments)
    want = gradient_of(lambda fused: fused_glu(fused, LIMIT, implementation="xla"), fused, cotangent)
    np.testing.assert_allclose(out, want[0], rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(gradient, want[1], rtol=1e-2, atol=1e-2)
