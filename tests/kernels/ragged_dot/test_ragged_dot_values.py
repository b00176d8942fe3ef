"""Results and gradients against float64, for every implementation that can run interpreted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from ragged_cases import CASES, WAYS, Case, close, data, jitted

from hloscope_kernels.ragged_dot import pallas_tpu, ragged_dot
from hloscope_kernels.ragged_dot.bounds import row_bounds
from hloscope_kernels.ragged_dot.tiles import Tiles

UNALIGNED = next(case for case in CASES if case.name == "groups end inside tiles")
UNFILLED = next(case for case in CASES if case.name == "sizes do not fill the rows")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_result_and_gradients(case: Case, way: str) -> None:
    known = data(case)
    sizes, offset = jnp.array(case.sizes), jnp.array(case.offset or 0)
    out, d_lhs, d_rhs = jitted(way, case.offset is not None)(known.lhs, known.rhs, sizes, offset, known.grad)
    close(out, known.out, case.k)
    close(d_lhs, known.d_lhs, case.n)
    close(d_rhs, known.d_rhs, case.m)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_dead_rows_are_exactly_zero(case: Case, way: str) -> None:
    known = data(case)
    sizes, offset = jnp.array(case.sizes), jnp.array(case.offset or 0)
    out, d_lhs, _ = jitted(way, case.offset is not None)(known.lhs, known.rhs, sizes, offset, known.grad)
    dead = np.ones(case.m, bool)
    dead[case.live] = False
    assert not np.asarray(out)[dead].any()
    assert not np.asarray(d_lhs)[dead].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_half_precision_sums_in_float32(way: str, dtype: Any) -> None:
    known = data(UNFILLED, dtype)
    out, d_lhs, d_rhs = jitted(way, False)(
        known.lhs, known.rhs, jnp.array(UNFILLED.sizes), jnp.array(0), known.grad
    )
    assert (out.dtype, d_lhs.dtype, d_rhs.dtype) == (dtype, dtype, dtype)
    close(out, known.out, UNFILLED.k)
    close(d_lhs, known.d_lhs, UNFILLED.n)
    close(d_rhs, known.d_rhs, UNFILLED.m)


@pytest.mark.parametrize("way", WAYS)
def test_operands_of_two_dtypes(way: str) -> None:
    known = data(UNFILLED, jnp.bfloat16)
    rhs = known.rhs.astype(np.float32)
    out, d_lhs, d_rhs = jitted(way, False)(
        known.lhs, rhs, jnp.array(UNFILLED.sizes), jnp.array(0), known.grad.astype(np.float32)
    )
    assert (out.dtype, d_lhs.dtype, d_rhs.dtype) == (jnp.float32, jnp.bfloat16, jnp.float32)
    close(out, known.out, UNFILLED.k)
    close(d_lhs, known.d_lhs, UNFILLED.n)
    close(d_rhs, known.d_rhs, UNFILLED.m)


@pytest.mark.parametrize("way", WAYS)
def test_preferred_element_type_keeps_the_sum(way: str) -> None:
    known = data(UNFILLED, jnp.bfloat16)
    out = ragged_dot(
        jnp.asarray(known.lhs),
        jnp.asarray(known.rhs),
        UNFILLED.sizes,
        preferred_element_type=jnp.float32,
        **WAYS[way],
    )
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, known.out, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", ["pallas_tpu", "pallas_gpu"])
def test_weights_of_empty_groups_are_not_read(way: str) -> None:
    case = next(case for case in CASES if case.name == "empty groups")
    known = data(case)
    rhs = known.rhs.copy()
    rhs[np.array(case.sizes) == 0] = np.nan
    out, d_lhs, _ = jitted(way, False)(known.lhs, rhs, jnp.array(case.sizes), jnp.array(0), known.grad)
    close(out, known.out, case.k)
    close(d_lhs, known.d_lhs, case.n)


@pytest.mark.parametrize(
    "tiles", [Tiles(rows=8, inner=24, outer=20), Tiles(rows=32, inner=128, outer=128)], ids=str
)
@pytest.mark.parametrize("case", [UNALIGNED, CASES[3], CASES[9]], ids=lambda case: case.name)
def test_uninitialized_memory_never_shows(case: Case, tiles: Tiles) -> None:
    known = data(case)
    bounds = row_bounds(case.sizes, case.offset, local_groups=case.held, rows=case.m)
    nan = pltpu.InterpretParams(uninitialized_memory="nan")
    how: dict[str, Any] = {"out_dtype": jnp.float32, "precision": "highest", "interpret": nan, "tiles": tiles}
    lhs, rhs, grad = jnp.asarray(known.lhs), jnp.asarray(known.rhs), jnp.asarray(known.grad)
    close(pallas_tpu.dot(lhs, rhs, bounds, transposed=False, **how), known.out, case.k)
    close(pallas_tpu.contraction(lhs, grad, bounds, **how), known.d_rhs, case.m)


@pytest.mark.parametrize("transposed", [False, True])
def test_contracted_width_in_several_tiles(transposed: bool) -> None:
    case = Case(name="several k tiles", m=80, k=300, n=150, sizes=(20, 0, 33))
    known = data(case)
    bounds = row_bounds(case.sizes, None, local_groups=case.held, rows=case.m)
    rhs = known.rhs.swapaxes(1, 2) if transposed else known.rhs
    out = pallas_tpu.dot(
        jnp.asarray(known.lhs),
        jnp.asarray(rhs),
        bounds,
        transposed=transposed,
        out_dtype=jnp.float32,
        precision="highest",
        interpret=True,
        tiles=Tiles(rows=16, inner=128, outer=128),
    )
    close(out, known.out, case.k)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k", [128, 300], ids=["k whole", "several k tiles"])
@pytest.mark.parametrize("case", [UNALIGNED, CASES[8]], ids=lambda case: case.name)
def test_a_product_in_parts_is_the_product(case: Case, k: int, transposed: bool) -> None:
    case = replace(case, k=k, n=256)
    known = data(case)
    bounds = row_bounds(case.sizes, case.offset, local_groups=case.held, rows=case.m)
    rhs = known.rhs.swapaxes(1, 2) if transposed else known.rhs
    tiles = Tiles(rows=32, inner=128, outer=256, part=128)
    common: dict[str, Any] = {
        "transposed": transposed,
        "out_dtype": jnp.float32,
        "precision": "highest",
        "interpret": True,
    }
    operands = jnp.asarray(known.lhs), jnp.asarray(rhs), bounds
    out = pallas_tpu.dot(*operands, tiles=tiles, **common)
    close(out, known.out, case.k)
    dead = np.ones(case.m, bool)
    dead[case.live] = False
    assert not np.asarray(out)[dead].any()


@pytest.mark.parametrize("way", WAYS)
def test_a_list_of_weights_is_the_stacked_weight(way: str) -> None:
    known = data(UNFILLED)
    lhs, sizes = jnp.asarray(known.lhs), jnp.array(UNFILLED.sizes)
    weights = [jnp.asarray(weight) for weight in known.rhs]
    call = partial(ragged_dot, precision="highest", **WAYS[way])
    out, pull = jax.vjp(lambda ws: call(lhs, ws, sizes), weights)
    np.testing.assert_array_equal(out, call(lhs, jnp.asarray(known.rhs), sizes))
    (d_weights,) = pull(jnp.asarray(known.grad))
    assert isinstance(d_weights, list)
    close(jnp.stack(d_weights), known.d_rhs, UNFILLED.m)


def test_sizes_on_host_and_device_and_a_numpy_offset_agree() -> None:
    known = data(UNFILLED)
    lhs, rhs = jnp.asarray(known.lhs), jnp.asarray(known.rhs)
    sizes = UNFILLED.sizes
    for given in (sizes, list(sizes), np.array(sizes), jnp.array(sizes), np.array(sizes, np.int64)):
        np.testing.assert_array_equal(ragged_dot(lhs, rhs, given), ragged_dot(lhs, rhs, sizes, np.array(0)))


def test_device_sizes_beyond_the_rows_are_cut_off() -> None:
    lhs, rhs = jnp.ones((4, 2)), jnp.stack([jnp.ones((2, 3)), 2 * jnp.ones((2, 3))])
    out = jax.jit(ragged_dot)(lhs, rhs, jnp.array([3, 100]))
    np.testing.assert_array_equal(out[:, 0], [2, 2, 2, 4])


@pytest.mark.parametrize(("offset", "expected"), [(-1, [2, 2, 0, 0]), (1, [0, 0, 2, 2]), (2, [0, 0, 0, 0])])
def test_device_offset_outside_the_groups_finds_no_rows(offset: int, expected: list[int]) -> None:
    lhs, rhs = jnp.ones((4, 2)), jnp.ones((2, 2, 1))
    out = jax.jit(ragged_dot)(lhs, rhs, jnp.array([2, 2]), jnp.array(offset))
    np.testing.assert_array_equal(out[:, 0], expected)


@pytest.mark.parametrize("shape", [(0, 3, 2), (4, 0, 2), (4, 3, 0)])
def test_nothing_to_multiply(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    out = ragged_dot(jnp.ones((m, k)), jnp.ones((2, k, n)), [0, 0])
    np.testing.assert_array_equal(out, np.zeros((m, n)))
