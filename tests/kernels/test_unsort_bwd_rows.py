"""unsort_bwd_rows: the weighted gradient bit for bit, the dots to float32's accuracy, valid rows only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from row_cases import bits, every_bfloat16, limits, normal, with_dead_rows, written_rows

from hloscope_kernels import unsort_bwd_rows
from hloscope_kernels.chip import V6E, Chip
from hloscope_kernels.row_grid import RowGrid
from hloscope_kernels.unsort_bwd_rows import supports
from hloscope_kernels.unsort_bwd_rows.config import Blocks, blocks_for
from hloscope_kernels.unsort_bwd_rows.pallas_tpu import unsort_bwd_rows_kernel
from hloscope_kernels.unsort_bwd_rows.reference import unsort_bwd_rows_reference
from hloscope_kernels.unsort_bwd_rows.shapes import QWEN35_397B

BLOCK = 1024
ROWS = 2 * BLOCK + 300


@partial(jax.jit, static_argnames=("columns", "cores", "donate"))
def interpreted(gradient, y, weights, limit, columns=128, cores=1, donate=False):
    return unsort_bwd_rows_kernel(
        gradient,
        y,
        weights,
        limit,
        blocks=Blocks(rows=BLOCK, columns=columns, tile_rows=128),
        chip=replace(V6E, cores=cores),
        donate=donate,
        interpret=True,
    )


reference = jax.jit(unsort_bwd_rows_reference)


def operands(hidden, dtype, limit, weights_dtype=jnp.float32):
    values = (
        normal(0, (ROWS, hidden), dtype),
        normal(1, (ROWS, hidden), dtype),
        normal(2, (ROWS,), weights_dtype),
    )
    return [with_dead_rows(value, limit) for value in values]


def dots_in_float64(gradient, y, limit):
    wide = np.asarray(gradient, np.float64)[:limit] * np.asarray(y, np.float64)[:limit]
    # Float32 sums of n products differ by no more than n * 2^-24 of the sum of absolute values.
    return wide.sum(axis=1), np.abs(wide).sum(axis=1) * wide.shape[1] * 2.0**-24


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(
    ("hidden", "columns"),
    [(256, 256), (256, 128), (384, 256), (200, 128)],
    ids=["one column block", "two", "a partial one", "columns that fill no lane tile"],
)
def test_valid_rows_are_right_and_dead_rows_are_never_read(dtype, hidden, columns):
    for limit in limits(ROWS, BLOCK):
        gradient, y, weights = operands(hidden, dtype, limit)
        written = written_rows(ROWS, limit, BLOCK)
        weighted, dots = interpreted(gradient, y, weights, limit, columns)
        plain, plain_dots = reference(gradient, y, weights, limit)
        np.testing.assert_array_equal(bits(weighted[:written]), bits(plain[:written]))
        exact, tolerance = dots_in_float64(gradient, y, limit)
        for result in (dots, plain_dots):
            assert np.all(np.abs(np.asarray(result)[:limit] - exact) <= tolerance)
            assert not np.asarray(result)[limit:written].any()
        # The interpreter fills what nobody writes with NaN.
        assert np.isnan(np.asarray(weighted[written:], np.float32)).all()
        assert np.isnan(np.asarray(dots[written:])).all()


def test_two_cores_share_the_blocks_and_a_step_too_many_changes_nothing():
    # In place and with several column blocks: a block visited twice would be weighted twice.
    for limit in (0, 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1, ROWS):
        gradient, y, weights = operands(256, jnp.bfloat16, limit)
        written = written_rows(ROWS, limit, BLOCK)
        weighted, dots = interpreted(gradient, y, weights, limit, cores=2, donate=True)
        plain, plain_dots = reference(gradient, y, weights, limit)
        np.testing.assert_array_equal(bits(weighted[:written]), bits(plain[:written]))
        np.testing.assert_allclose(dots[:limit], plain_dots[:limit], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int64"])
def test_a_limit_of_any_type_where_jax_has_64_bits(dtype, cores):
    gradient, y, weights = operands(256, jnp.bfloat16, 200)
    with jax.enable_x64(True):
        weighted, dots = interpreted(gradient, y, weights, jnp.asarray(200, dtype), cores=cores)
    plain, plain_dots = reference(gradient, y, weights, 200)
    np.testing.assert_array_equal(bits(weighted[:BLOCK]), bits(plain[:BLOCK]))
    np.testing.assert_allclose(dots[:200], plain_dots[:200], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
@pytest.mark.parametrize(
    ("dtype", "limit"), [("uint32", 2**32 - 1), ("int64", 2**32 + 5), ("int64", -(2**32) + 5)]
)
def test_a_limit_beyond_int32_is_behind_all_rows_or_before_them(dtype, limit, implementation):
    gradient, y, weights = (value[:300] for value in operands(256, jnp.bfloat16, 300, jnp.bfloat16))
    with jax.enable_x64(True):
        weighted, _ = unsort_bwd_rows(
            gradient, y, weights, jnp.asarray(limit, dtype), implementation=implementation
        )
    plain, _ = reference(gradient, y, weights, 300 if limit > 0 else 0)
    np.testing.assert_array_equal(bits(weighted), bits(plain))


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("cores", [1, 2])
def test_the_grid_visits_each_live_block_once_per_column_block(blocks, cores):
    grid = RowGrid(rows=blocks * 8, block_rows=8, column_blocks=3, cores=cores)
    for limit in range(-1, blocks * 8 + 2):
        live = min(max(-(-limit // 8), min(cores, blocks)), blocks)
        prefetched = grid.prefetched(jnp.asarray(limit))
        workers, steps, columns = (int(size) for size in grid.grid(jnp.asarray(limit)))
        visited = []
        for core in range(workers):
            before = None
            for step in range(steps):
                for column in range(columns):
                    index = tuple(int(i) for i in grid.block_index(core, step, column, prefetched))
                    idle = core * steps + step >= live
                    assert not idle or index == before  # Nothing is fetched or written for an idle step.
                    visited += [] if idle else [index]
                    before = index
        assert sorted(visited) == [(block, column) for block in range(live) for column in range(3)]


def test_uninitialised_memory_does_not_come_through():
    # The detailed interpreter: windows and scratch start as NaN.
    gradient, y, weights = (value[: 2 * BLOCK] for value in operands(256, jnp.bfloat16, 5))
    weighted, dots = jax.jit(
        partial(
            unsort_bwd_rows_kernel,
            blocks=Blocks(rows=BLOCK, columns=128, tile_rows=512),
            chip=V6E,
            interpret=pltpu.InterpretParams(uninitialized_memory="nan"),
        )
    )(gradient, y, weights, 5)
    plain, plain_dots = reference(gradient, y, weights, 5)
    np.testing.assert_array_equal(bits(weighted[:BLOCK]), bits(plain[:BLOCK]))
    np.testing.assert_allclose(dots[:BLOCK], plain_dots[:BLOCK], rtol=1e-4, atol=1e-3)
    assert np.isnan(np.asarray(weighted[BLOCK:], np.float32)).all()


@settings(max_examples=8, deadline=None, derandomize=True)
@given(rows=st.integers(1, ROWS), hidden=st.sampled_from([1, 100, 128, 256, 300]), limit=st.integers(0, ROWS))
def test_any_shape(rows, hidden, limit):
    limit = min(limit, rows)
    gradient, y, weights = (
        with_dead_rows(normal(seed, shape, jnp.bfloat16), limit)
        for seed, shape in enumerate([(rows, hidden), (rows, hidden), (rows,)])
    )
    written = written_rows(rows, limit, BLOCK)
    weighted, dots = interpreted(gradient, y, weights, limit)
    plain, _ = reference(gradient, y, weights, limit)
    np.testing.assert_array_equal(bits(weighted[:written]), bits(plain[:written]))
    exact, tolerance = dots_in_float64(gradient, y, limit)
    assert np.all(np.abs(np.asarray(dots)[:limit] - exact) <= tolerance)
    assert not np.asarray(dots)[limit:written].any()


@pytest.mark.parametrize("limit_axis", [None, 0])
def test_vmap(limit_axis):
    gradient, y, weights = (value[:300] for value in operands(256, jnp.bfloat16, 300))
    limit = jnp.int32(200) if limit_axis is None else jnp.array([200, 0])

    def both(implementation):
        call = partial(unsort_bwd_rows, implementation=implementation)
        batch = (jnp.stack([value, -value]) for value in (gradient, y, weights))
        return jax.jit(jax.vmap(call, (0, 0, 0, limit_axis)))(*batch, limit)

    (weighted, dots), (plain, plain_dots) = both("interpret"), both("xla")
    np.testing.assert_array_equal(bits(weighted), bits(plain))
    np.testing.assert_allclose(dots, plain_dots, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("weight", [1.0, -0.0, 1e-40, np.inf, np.nan])
def test_every_bfloat16_as_the_gradient(weight):
    gradient = every_bfloat16()
    y, weights = jnp.ones_like(gradient), jnp.full(gradient.shape[0], weight)
    kernel = partial(
        unsort_bwd_rows_kernel,
        blocks=Blocks(rows=512, columns=128, tile_rows=128),
        chip=V6E,
        interpret=True,
    )
    weighted, _ = jax.jit(kernel)(gradient, y, weights, 512)
    np.testing.assert_array_equal(bits(weighted), bits(reference(gradient, y, weights, 512)[0]))


def test_a_donated_gradient_keeps_the_rows_that_nobody_writes():
    gradient, y, weights = operands(256, jnp.bfloat16, ROWS)
    weighted, _ = interpreted(gradient, y, weights, 9, donate=True)
    plain, _ = reference(gradient, y, weights, 9)
    np.testing.assert_array_equal(bits(weighted[:BLOCK]), bits(plain[:BLOCK]))
    np.testing.assert_array_equal(bits(weighted[BLOCK:]), bits(gradient[BLOCK:]))


def test_the_door():
    gradient, y, weights = (value[:300] for value in operands(256, jnp.bfloat16, 300, jnp.bfloat16))
    plain = jax.jit(unsort_bwd_rows)(gradient, y, weights, 200)
    kernel = jax.jit(partial(unsort_bwd_rows, implementation="interpret"))(gradient, y, weights, 200)
    for got, want in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, y, w: unsort_bwd_rows(g[0], y, w, 1), r"gradient must be 2-D .* not 1-D \[256\]"),
        (
            lambda g, y, w: unsort_bwd_rows(g, y[:, :9], w, 1),
            r"y must have shape \[2348, 256\], not \[2348, 9\]",
        ),
        (lambda g, y, w: unsort_bwd_rows(g, y.astype(jnp.float32), w, 1), "y must have dtype bfloat16"),
        (lambda g, y, w: unsort_bwd_rows(g, y, w[:, None], 1), r"weights must have shape \[2348\], not"),
        (lambda g, y, w: unsort_bwd_rows(g, y, w.astype(int), 1), "weights must hold floating point numbers"),
        (lambda g, y, w: unsort_bwd_rows(g, y, w, 1.5), "limit must be one integer"),
        (
            lambda g, y, w: unsort_bwd_rows(g, y, w, 1, implementation="pallas_tpu"),
            "cannot run: the kernel is for TPU and this trace is for cpu",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(*operands(256, jnp.bfloat16, ROWS))


def test_supports_returns_the_reason():
    assert supports(jax.ShapeDtypeStruct((8, 128), jnp.bfloat16), V6E) is None
    assert supports(jax.ShapeDtypeStruct((8, 128), jnp.float16), V6E) == (
        "the kernel takes bfloat16 and float32, not float16"
    )
    assert supports(jax.ShapeDtypeStruct((8, 128), jnp.bfloat16), None) == "the kernel is for TPU"
    assert "must be [rows, hidden]" in str(supports(jax.ShapeDtypeStruct((8,), jnp.bfloat16), V6E))


@pytest.mark.parametrize("vmem", [16 << 20, 64 << 20, 128 << 20])
def test_blocks_fit_vmem(vmem):
    chip = Chip(generation=6, cores=1, vmem_bytes=vmem)
    for rows in (1, 300, QWEN35_397B.rows):
        for hidden in (1, 100, 4096, 4736, 16_384):
            blocks = blocks_for(rows, hidden, 4, chip)
            assert blocks.rows % 128 == 0
            assert blocks.columns % 128 == 0
            assert 2 * 3 * blocks.rows * blocks.columns * 4 <= chip.window_bytes
    assert blocks_for(QWEN35_397B.rows, 4096, 2, V6E) == Blocks(rows=512, columns=4096, tile_rows=32)
