"""glu_rows and its gradient: bit for bit the float32 reference, in valid rows only."""

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
from wide_oracle import evaluate_wide

from hloscope_kernels import glu_rows, glu_rows_bwd
from hloscope_kernels.chip import V6E, Chip
from hloscope_kernels.exponential import exp_of_minus
from hloscope_kernels.glu_rows import supports
from hloscope_kernels.glu_rows.config import Blocks, backward_blocks, forward_blocks
from hloscope_kernels.glu_rows.pallas_tpu import glu_rows_bwd_kernel, glu_rows_kernel
from hloscope_kernels.glu_rows.reference import glu_rows_bwd_reference, glu_rows_reference
from hloscope_kernels.glu_rows.shapes import DEEPSEEK_V3_671B, QWEN35_397B

ROWS, BLOCK = 150, 64
BLOCKS = Blocks(rows=BLOCK, tile_rows=32, tile_columns=128)
USERS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}
CHIPS = {
    "v4": Chip(generation=4, cores=1, vmem_bytes=16 << 20),
    "v5e": Chip(generation=5, cores=1, vmem_bytes=128 << 20),
    "v5p": Chip(generation=5, cores=2, vmem_bytes=64 << 20),
    "v6e": V6E,
    "tpu7x": Chip(generation=7, cores=1, vmem_bytes=64 << 20),
}


@partial(jax.jit, static_argnames=("activation", "cores", "donate"))
def interpreted(fused, gradient, limit, activation, cores=1, donate=False):
    common = {
        "activation": activation,
        "blocks": BLOCKS,
        "chip": replace(V6E, cores=cores),
        "interpret": True,
    }
    forward = glu_rows_kernel(fused, limit, **common)
    return forward, glu_rows_bwd_kernel(fused, gradient, limit, donate=donate, **common)


@partial(jax.jit, static_argnames="activation")
def reference(fused, gradient, limit, activation):
    forward = glu_rows_reference(fused, limit, activation)
    return forward, glu_rows_bwd_reference(fused, gradient, limit, activation)


def users_glu(activation, fused):
    """What a model says."""
    gate, up = jnp.split(fused, 2, axis=1)
    return USERS[activation](gate) * up


@pytest.mark.parametrize("activation", USERS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("mlp", [256, 100])
def test_valid_rows_are_the_references_bits_and_dead_rows_are_never_read(activation, dtype, mlp):
    for limit in limits(ROWS, BLOCK):
        fused = with_dead_rows(normal(0, (ROWS, 2 * mlp), dtype), limit)
        gradient = with_dead_rows(normal(1, (ROWS, mlp), dtype), limit)
        written = written_rows(ROWS, limit, BLOCK)
        got = interpreted(fused, gradient, limit, activation)
        want = reference(fused, gradient, limit, activation)
        for kernel, plain in zip(got, want, strict=True):
            np.testing.assert_array_equal(bits(kernel[:written]), bits(plain[:written]))
            assert not np.isnan(np.asarray(plain, np.float32)).any()
            # The interpreter fills what nobody writes with NaN.
            assert np.isnan(np.asarray(kernel[written:], np.float32)).all()


@pytest.mark.parametrize("activation", USERS)
def test_two_cores_share_the_blocks(activation):
    fused, gradient = normal(0, (ROWS, 256), jnp.bfloat16), normal(1, (ROWS, 128), jnp.bfloat16)
    for limit in limits(ROWS, BLOCK):
        written = written_rows(ROWS, limit, BLOCK)
        got = interpreted(fused, gradient, limit, activation, cores=2, donate=True)
        for kernel, plain in zip(got, reference(fused, gradient, limit, activation), strict=True):
            np.testing.assert_array_equal(bits(kernel[:written]), bits(plain[:written]))


def test_uninitialised_memory_does_not_come_through():
    # The detailed interpreter: windows and scratch start as NaN.
    rows = 3 * BLOCK
    fused, gradient = normal(0, (rows, 256), jnp.bfloat16), normal(1, (rows, 128), jnp.bfloat16)
    common = {
        "activation": "silu",
        "blocks": BLOCKS,
        "chip": V6E,
        "interpret": pltpu.InterpretParams(uninitialized_memory="nan", out_of_bounds_reads="uninitialized"),
    }
    limit = BLOCK + 5
    got = (
        jax.jit(partial(glu_rows_kernel, **common))(fused, limit),
        jax.jit(partial(glu_rows_bwd_kernel, **common))(fused, gradient, limit),
    )
    for kernel, plain in zip(got, reference(fused, gradient, limit, "silu"), strict=True):
        np.testing.assert_array_equal(bits(kernel[: 2 * BLOCK]), bits(plain[: 2 * BLOCK]))
        assert np.isnan(np.asarray(kernel[2 * BLOCK :], np.float32)).all()


@pytest.mark.parametrize("activation", USERS)
@pytest.mark.parametrize("up", [1.5, -0.0, 0.0, np.inf, np.nan, 1e-40, -3e38])
def test_every_bfloat16_as_the_gate(activation, up):
    gate = every_bfloat16()
    fused = jnp.concatenate([gate, jnp.full_like(gate, up)], axis=1)
    gradient = normal(2, gate.shape, jnp.bfloat16).at[::7].set(-0.0).at[::11].set(jnp.inf)
    got = interpreted(fused, gradient, 512, activation)
    want = reference(fused, gradient, 512, activation)
    for kernel, plain in zip(got, want, strict=True):
        np.testing.assert_array_equal(bits(kernel), bits(plain))


@pytest.mark.parametrize("activation", USERS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_reference_is_the_models_program_in_float32(activation, dtype):
    """Against automatic differentiation of what a model says: same operations, same order, one rounding."""
    fused, gradient = normal(3, (512, 256), dtype), normal(4, (512, 128), dtype)
    user = partial(users_glu, activation)
    forward, backward = reference(fused, gradient, 512, activation)
    (wide_forward,) = jax.jit(lambda fused: evaluate_wide(user, fused))(fused)
    (wide_backward,) = jax.jit(
        lambda fused, gradient: evaluate_wide(lambda f, g: jax.vjp(user, f)[1](g)[0], fused, gradient)
    )(fused, gradient)
    np.testing.assert_array_equal(bits(forward), bits(wide_forward))
    # The one deviation: where the model's halves are joined without an addition, a zero keeps its sign.
    unsigned = np.where(np.asarray(wide_backward) == 0, 0, np.asarray(wide_backward))
    np.testing.assert_array_equal(bits(backward), bits(unsigned.astype(dtype)))


def test_the_exponential_of_the_machine_is_the_same_function():
    # The bits are those of the chip's power of two; the host's rounds the exponent, as large as it is.
    x = jnp.linspace(-80, 80, 1001, dtype=jnp.float32)
    plain = exp_of_minus(x, for_machine=False)
    np.testing.assert_allclose(exp_of_minus(x, for_machine=True), plain, rtol=2e-5)
    ends = jnp.asarray([jnp.inf, -jnp.inf, 0.0, -0.0, 200.0, -200.0])
    np.testing.assert_array_equal(exp_of_minus(ends, for_machine=True), exp_of_minus(ends, for_machine=False))


def test_rounding_every_step_would_not_do():
    fused = normal(3, (512, 256), jnp.bfloat16)
    stepwise = users_glu("silu", fused)  # Outside jit each operation rounds.
    different = np.mean(bits(stepwise) != bits(glu_rows_reference(fused, 512, "silu")))
    assert 0.01 < different < 0.5


@pytest.mark.parametrize("activation", USERS)
def test_the_gradient_has_no_negative_zero(activation):
    fused = normal(5, (BLOCK, 256), jnp.bfloat16).at[:, ::3].set(-0.0)
    gradient = normal(6, (BLOCK, 128), jnp.bfloat16).at[::2].set(-0.0)
    for result in (
        interpreted(fused, gradient, BLOCK, activation)[1],
        reference(fused, gradient, BLOCK, activation)[1],
    ):
        zeros = np.asarray(result, np.float32)
        assert (zeros == 0).any()
        assert not np.signbit(zeros[zeros == 0]).any()


def test_a_donated_buffer_keeps_the_rows_that_nobody_writes():
    fused, gradient = normal(0, (ROWS, 256), jnp.bfloat16), normal(1, (ROWS, 128), jnp.bfloat16)
    got = interpreted(fused, gradient, BLOCK - 1, "silu", donate=True)[1]
    want = reference(fused, gradient, BLOCK - 1, "silu")[1]
    np.testing.assert_array_equal(bits(got[:BLOCK]), bits(want[:BLOCK]))
    np.testing.assert_array_equal(bits(got[BLOCK:]), bits(fused[BLOCK:]))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(rows=st.integers(1, 200), mlp=st.integers(1, 200), limit=st.integers(0, 200))
def test_any_shape(rows, mlp, limit):
    limit = min(limit, rows)
    fused = with_dead_rows(normal(0, (rows, 2 * mlp), jnp.bfloat16), limit)
    gradient = with_dead_rows(normal(1, (rows, mlp), jnp.bfloat16), limit)
    written = written_rows(rows, limit, BLOCK)
    got = interpreted(fused, gradient, limit, "silu")
    for kernel, plain in zip(got, reference(fused, gradient, limit, "silu"), strict=True):
        np.testing.assert_array_equal(bits(kernel[:written]), bits(plain[:written]))


def test_off_a_tpu_the_reference_runs():
    fused, gradient = normal(0, (ROWS, 256), jnp.bfloat16), normal(1, (ROWS, 128), jnp.bfloat16)
    want = reference(fused, gradient, 70, "silu")
    np.testing.assert_array_equal(bits(jax.jit(glu_rows)(fused, 70)), bits(want[0]))
    np.testing.assert_array_equal(bits(jax.jit(glu_rows_bwd)(fused, gradient, 70)), bits(want[1]))


def test_the_door_interprets_when_asked():
    fused = normal(0, (40, 256), jnp.bfloat16)
    got = jax.jit(partial(glu_rows, implementation="interpret"))(fused, 33)
    want = glu_rows_reference(fused, 33, "silu")
    # 40 rows are one block, which is written whole.
    np.testing.assert_array_equal(bits(got), bits(jax.jit(lambda x: x)(want)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: glu_rows(x[0], 1), r"fused must be 2-D \[rows, columns\], not 1-D \[256\]"),
        (lambda x: glu_rows(x[:, 1:], 1), r"even width, not \[150, 255\]"),
        (lambda x: glu_rows(x.astype(jnp.int32), 1), "floating point numbers, not int32"),
        (lambda x: glu_rows(x[:0], 1), r"must not be empty, but its shape is \[0, 256\]"),
        (lambda x: glu_rows(x, 1.0), r"limit must be one integer, not float32\[\]"),
        (lambda x: glu_rows(x, jnp.ones(2, int)), r"limit must be one integer, not int32\[2\]"),
        (lambda x: glu_rows(x, 1, "relu"), "activation must be one of silu, gelu, not 'relu'"),
        (lambda x: glu_rows(x, 1, implementation="cuda"), "implementation must be one of auto, pallas_tpu"),
        (
            lambda x: glu_rows(x, 1, implementation="pallas_tpu"),
            "'pallas_tpu' cannot run: the kernel is for TPU and this trace is for cpu",
        ),
        (
            lambda x: glu_rows(x.astype(jnp.float16), 1, implementation="interpret"),
            "'interpret' cannot run: the kernel takes bfloat16 and float32, not float16",
        ),
        (lambda x: glu_rows_bwd(x, x, 1), r"gradient must have shape \[150, 128\], not \[150, 256\]"),
        (
            lambda x: glu_rows_bwd(x, x[:, :128].astype(jnp.float32), 1),
            "gradient must have dtype bfloat16, not float32",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(normal(0, (ROWS, 256), jnp.bfloat16))


def test_supports_returns_the_reason():
    wide = jax.ShapeDtypeStruct((1024, 1 << 20), jnp.bfloat16)
    assert supports(jax.ShapeDtypeStruct((1024, 2048), jnp.bfloat16), "silu", CHIPS["v4"]) is None
    assert supports(wide, "silu", CHIPS["v4"]) == (
        "16 rows of mlp 524288 do not fit the VMEM of this TPU, which takes up to 39296"
    )
    assert supports(wide, "silu", None) == "the kernel is for TPU"
    assert "must be [rows, 2 * mlp]" in str(supports(jax.ShapeDtypeStruct((8,), jnp.float32), "silu", V6E))
    assert "not 'relu'" in str(supports(wide, "relu", V6E))


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_blocks_fit_vmem(chip):
    for shape in (QWEN35_397B, DEEPSEEK_V3_671B):
        for mlp in (7, 128, 1000, shape.mlp, 18_432):
            for itemsize in (2, 4):
                for columns, blocks in (
                    (3 * mlp, forward_blocks(shape.rows, mlp, itemsize, chip)),
                    (5 * mlp, backward_blocks(shape.rows, mlp, itemsize, chip)),
                ):
                    assert blocks.rows % blocks.tile_rows == 0
                    assert 2 * blocks.rows * columns * itemsize <= chip.window_bytes
                    assert chip.vmem_limit(chip.window_bytes) <= chip.vmem_bytes
