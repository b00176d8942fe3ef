"""Gradients of gradients, and the transformations that training steps use."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.test_util import check_grads
from ragged_cases import WAYS

from hloscope_kernels.ragged_dot import ragged_dot
from hloscope_kernels.ragged_dot.gradients import How, contraction

M, K, N = 20, 6, 5
SIZES, OFFSET, HELD = (4, 6, 0, 7), 1, 2


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


LHS, RHS, GRAD = normal(0, M, K), normal(1, HELD, K, N), normal(2, M, N)


def grouped(way: str) -> Any:
    return partial(
        ragged_dot, group_sizes=jnp.array(SIZES), group_offset=OFFSET, precision="highest", **WAYS[way]
    )


def dense(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The same by one dense product per group, which jax differentiates by itself."""
    row = jnp.arange(M)[:, None]
    starts = np.cumsum((0, *SIZES))[OFFSET:]
    parts = [
        jnp.where((row >= start) & (row < end), jnp.dot(lhs, weight, precision="highest"), 0)
        for weight, start, end in zip(rhs, starts[:-1], starts[1:], strict=False)
    ]
    return sum(parts, jnp.zeros((M, N)))


def equal(actual: Any, expected: Any) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), actual, expected)


@pytest.mark.parametrize("way", WAYS)
def test_first_order_is_the_dense_one(way: str) -> None:
    def loss(product: Any) -> Any:
        return lambda lhs, rhs: jnp.sum(jnp.sin(product(lhs, rhs)) * GRAD)

    equal(jax.grad(loss(grouped(way)), (0, 1))(LHS, RHS), jax.grad(loss(dense), (0, 1))(LHS, RHS))


@pytest.mark.parametrize("way", WAYS)
def test_second_order_is_the_dense_one(way: str) -> None:
    def penalty(product: Any) -> Any:
        def inner(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            d_lhs, d_rhs = jax.vjp(product, lhs, rhs)[1](jnp.cos(product(lhs, rhs)))
            return jnp.sum(jnp.sin(d_lhs)) + jnp.sum(jnp.sin(d_rhs))

        return jax.jit(jax.grad(inner, (0, 1)))

    equal(penalty(grouped(way))(LHS, RHS), penalty(dense)(LHS, RHS))


def test_numerical_derivatives() -> None:
    check_grads(grouped("xla"), (LHS, RHS), order=2, modes=["rev"], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("way", WAYS)
def test_the_contraction_differentiates_into_grouped_products(way: str) -> None:
    how = How(
        implementation=way, precision="highest", interpret=WAYS[way].get("interpret", False), offset=True
    )
    bounds, cotangent = jnp.array([4, 10, 10]), normal(3, HELD, K, N)
    _, pull = jax.vjp(lambda a, b: contraction(a, b, bounds, jnp.float32, how), LHS, GRAD)
    d_lhs, d_grad = pull(cotangent)
    live = slice(4, 10)
    expected_lhs, expected_grad = np.zeros((M, K)), np.zeros((M, N))
    expected_lhs[live] = GRAD[live] @ cotangent[0].T
    expected_grad[live] = LHS[live] @ cotangent[0]
    equal((d_lhs, d_grad), (expected_lhs, expected_grad))


@pytest.mark.parametrize("way", WAYS)
def test_scan_over_layers_with_rematerialization(way: str) -> None:
    product = grouped(way)

    def layer(total: jax.Array, lhs: jax.Array, rhs: jax.Array, by: Any) -> tuple[jax.Array, None]:
        return total + jnp.sum(jnp.sin(by(lhs, rhs))), None

    def loss(by: Any) -> Any:
        step = jax.checkpoint(partial(layer, by=by))
        return lambda rhs: jax.lax.scan(lambda c, x: step(c, x, rhs), 0.0, jnp.stack([LHS, 2 * LHS]))[0]

    equal(jax.jit(jax.grad(loss(product)))(RHS), jax.grad(loss(dense))(RHS))


@pytest.mark.parametrize("way", WAYS)
def test_vmap_over_rows_alone(way: str) -> None:
    out = jax.vmap(lambda lhs: grouped(way)(lhs, RHS))(jnp.stack([LHS, 2 * LHS]))
    equal(out, jnp.stack([dense(LHS, RHS), 2 * dense(LHS, RHS)]))


@pytest.mark.parametrize("way", WAYS)
def test_vmap_over_everything(way: str) -> None:
    call = partial(ragged_dot, precision="highest", **WAYS[way])
    sizes = jnp.array([[3, 5], [0, 20]])
    out = jax.vmap(call)(jnp.stack([LHS, LHS]), jnp.stack([RHS, 2 * RHS]), sizes)
    equal(out, jnp.stack([call(LHS, RHS, sizes[0]), call(LHS, 2 * RHS, sizes[1])]))


# jax's interpreter of Pallas kernels does not pass the check of what varies over the mesh; compiled kernels do
# (see the compile tests).
@pytest.mark.parametrize(
    ("way", "check"), [("xla", True), ("xla", False), ("pallas_tpu", False), ("pallas_gpu", False)]
)
def test_shard_map_with_replicated_weights(way: str, check: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",), axis_types=(AxisType.Auto,))
    rows, whole = PartitionSpec("x"), PartitionSpec()
    mapped = jax.shard_map(grouped(way), mesh=mesh, in_specs=(rows, whole), out_specs=rows, check_vma=check)

    def loss(product: Any) -> Any:
        return lambda lhs, rhs: jnp.sum(product(lhs, rhs) ** 2)

    equal(jax.jit(jax.grad(loss(mapped), (0, 1)))(LHS, RHS), jax.grad(loss(dense), (0, 1))(LHS, RHS))
