"""valid_rows: any row-wise function as one kernel, in valid rows only; what mixes rows is refused by name."""

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

from hloscope_kernels import glu_rows, glu_rows_bwd, unsort_bwd_rows, valid_rows
from hloscope_kernels.chip import V6E
from hloscope_kernels.valid_rows import supports
from hloscope_kernels.valid_rows.config import Blocks, blocks_for
from hloscope_kernels.valid_rows.layout import lockstep
from hloscope_kernels.valid_rows.pallas_tpu import RowKernel, valid_rows_kernel
from hloscope_kernels.valid_rows.program import read_program
from hloscope_kernels.valid_rows.reference import valid_rows_reference
from hloscope_kernels.valid_rows.roles import NotRowWiseError, infer_roles

ROWS, BLOCK, WIDTH = 300, 128, 256
F32 = jnp.float32
SCALE = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)


def glu(fused):
    gate, up = jnp.split(fused, 2, axis=1)
    return jax.nn.silu(gate) * up


def glu_bwd(fused, gradient):
    return jax.vjp(glu, fused)[1](gradient)[0]


def unsort_bwd(gradient, y, weights):
    wide = gradient.astype(F32)
    return (wide * weights[:, None]).astype(gradient.dtype), jnp.sum(wide * y.astype(F32), axis=1)


def rms_norm(x):
    mean = jnp.mean(jnp.square(x.astype(F32)), axis=1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * SCALE, mean


def softmax(x):
    return jax.nn.softmax(x.astype(F32), axis=-1)


def clip_and_quantize(x):
    largest = jnp.max(jnp.abs(x), axis=1, keepdims=True)
    scaled = jnp.round(x.astype(F32) / jnp.where(largest == 0, 1, largest).astype(F32) * 127)
    return scaled.astype(jnp.int32), largest[:, 0].astype(F32)


def shuffle_columns(x):
    return jnp.concatenate([x[:, 200:], jnp.pad(x[:, 5:77], ((0, 0), (3, 1)), constant_values=2)], axis=1)


def alternate_rows(x):
    row, column = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.where((row + column) % 2 == 0, x, 0)


def masked(x, weights, alive, last):
    """Booleans per row against each other, against columns and against numbers per row."""
    row = alive & ~last[:, 0]
    weighted = jnp.where(row[:, None], x.astype(F32) * weights[:, None], -1.0)
    return weighted.astype(x.dtype), jnp.where(last[:, 0], weights, row.astype(F32) + 3)


def gelu_in_calls(x):
    return jax.checkpoint(jax.jit(lambda x: jax.nn.gelu(jax.nn.relu(x) - 1)))(x)


def matrices(*widths):
    return [((ROWS, width), jnp.bfloat16) for width in widths]


VECTOR = ((ROWS,), F32)
FUNCTIONS = {
    "glu": (glu, matrices(2 * WIDTH)),
    "glu_bwd": (glu_bwd, matrices(2 * WIDTH, WIDTH)),
    "unsort_bwd": (unsort_bwd, [*matrices(WIDTH, WIDTH), VECTOR]),
    "rms_norm": (rms_norm, matrices(WIDTH)),
    "softmax": (softmax, matrices(WIDTH)),
    "softmax of an odd width": (softmax, matrices(200)),
    "clip_and_quantize": (clip_and_quantize, matrices(WIDTH)),
    "shuffle_columns": (shuffle_columns, matrices(WIDTH)),
    "alternate_rows": (alternate_rows, matrices(WIDTH)),
    "gelu_in_calls": (gelu_in_calls, matrices(100)),
    "numbers per row": (lambda v, w: (v * w + 1, v[:, None] - 2), [VECTOR, VECTOR]),
    "booleans per row": (masked, [*matrices(WIDTH), VECTOR, ((ROWS,), bool), ((ROWS, 1), bool)]),
    "a column operand": (lambda x, v: x.astype(F32) + v, [*matrices(WIDTH), ((ROWS, 1), F32)]),
}
# The order of a sum is the kernel's own; a division by a number per row may become a multiplication, so
# that what lies between two integers can fall either way.
INEXACT = {"unsort_bwd", "rms_norm", "softmax", "softmax of an odd width", "clip_and_quantize"}


def operands_of(shapes, limit):
    return [with_dead_rows(normal(seed, shape, dtype), limit) for seed, (shape, dtype) in enumerate(shapes)]


def make_kernel(function, operands, block=BLOCK, tile=(32, 128)):
    program, _ = read_program(function, operands)
    rows = operands[0].shape[0]
    return RowKernel(
        program=program,
        roles=infer_roles(program, rows),
        rows=rows,
        blocks=Blocks(rows=block, tile_rows=tile[0], tile_columns=tile[1]),
    )


def interpreted(function, operands, limit, chip=V6E, interpret=True, **blocks):
    kernel = make_kernel(function, operands, **blocks)
    run = partial(valid_rows_kernel, kernel, chip=chip, aliases={}, name="test", interpret=interpret)
    return jax.jit(run)(operands, jnp.int32(limit))


def reference(function, operands, limit):
    program, _ = read_program(function, operands)
    return jax.jit(partial(valid_rows_reference, program))(operands, jnp.int32(limit))


def assert_same(got, want, exact):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if exact:
        np.testing.assert_array_equal(bits(got), bits(want))
    else:
        tolerance = 1e-2 if got.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            np.asarray(got, np.float32),
            np.asarray(want, np.float32),
            rtol=tolerance,
            atol=1 if got.dtype == jnp.int32 else 1e-4,
        )


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("limit", [0, 1, BLOCK - 1, BLOCK + 1, ROWS])
def test_valid_rows_are_right_and_dead_rows_are_never_read(name, limit):
    function, shapes = FUNCTIONS[name]
    operands = operands_of(shapes, limit)
    written = written_rows(ROWS, limit, BLOCK)
    for got, want in zip(
        interpreted(function, operands, limit), reference(function, operands, limit), strict=True
    ):
        assert_same(got[:written], want[:written], exact=name not in INEXACT)
        assert not np.asarray(want[limit:], np.float32).any()
        if jnp.issubdtype(got.dtype, jnp.floating):
            # The interpreter fills what nobody writes with NaN.
            assert np.isnan(np.asarray(got[written:], np.float32)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_is_the_function_in_float32(name):
    function, shapes = FUNCTIONS[name]
    operands = operands_of(shapes, ROWS)
    wide = jax.jit(partial(evaluate_wide, function))(*operands)
    plain = jax.tree.leaves(jax.jit(function)(*operands))
    for got, want, rounded in zip(reference(function, operands, ROWS), wide, plain, strict=True):
        assert_same(got, want, exact=name not in INEXACT)
        assert (got.shape, got.dtype) == (rounded.shape, rounded.dtype)


def test_it_is_the_hand_written_kernels():
    for limit in limits(ROWS, BLOCK):
        fused, gradient = operands_of(matrices(2 * WIDTH, WIDTH), limit)
        _, _, weights = operands_of(FUNCTIONS["unsort_bwd"][1], limit)
        (forward,) = reference(glu, [fused], limit)
        (backward,) = reference(glu_bwd, [fused, gradient], limit)
        weighted, dots = reference(unsort_bwd, [gradient, gradient, weights], limit)
        np.testing.assert_array_equal(bits(forward), bits(jax.jit(glu_rows)(fused, limit)))
        # Splits are joined again without an addition here, so -0 stays -0.
        by_hand = np.asarray(jax.jit(glu_rows_bwd)(fused, gradient, limit), np.float32)
        np.testing.assert_array_equal(np.asarray(backward, np.float32), by_hand)
        want = jax.jit(unsort_bwd_rows)(gradient, gradient, weights, limit)
        np.testing.assert_array_equal(bits(weighted), bits(want[0]))
        np.testing.assert_allclose(dots, want[1], rtol=1e-5)


@pytest.mark.parametrize("name", ["glu_bwd", "unsort_bwd", "rms_norm"])
def test_uninitialised_memory_does_not_come_through(name):
    function, shapes = FUNCTIONS[name]
    operands = [value[: 2 * BLOCK] for value in operands_of(shapes, 9)]
    interpret = pltpu.InterpretParams(uninitialized_memory="nan")
    got = interpreted(function, operands, 9, interpret=interpret, tile=(128, 128))
    for kernel, want in zip(got, reference(function, operands, 9), strict=True):
        assert_same(kernel[:BLOCK], want[:BLOCK], exact=False)
        assert np.isnan(np.asarray(kernel[BLOCK:], np.float32)).all()


@pytest.mark.parametrize("name", ["glu", "unsort_bwd", "alternate_rows"])
def test_two_cores_share_the_blocks(name):
    function, shapes = FUNCTIONS[name]
    for limit in (0, BLOCK, 2 * BLOCK + 1, ROWS):
        operands = operands_of(shapes, limit)
        written = written_rows(ROWS, limit, BLOCK)
        got = interpreted(function, operands, limit, chip=replace(V6E, cores=2))
        for kernel, want in zip(got, reference(function, operands, limit), strict=True):
            assert_same(kernel[:written], want[:written], exact=name not in INEXACT)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 300),
    width=st.integers(1, 300),
    limit=st.integers(0, 300),
    tile=st.sampled_from([(16, 128), (64, 256), (128, 128)]),
)
def test_any_shape(rows, width, limit, tile):
    limit = min(limit, rows)
    x, v = with_dead_rows(normal(0, (rows, width), jnp.bfloat16), limit), normal(1, (rows,), F32)

    def function(x, v):
        return jnp.tanh(x.astype(F32)) * v[:, None], jnp.max(x, axis=1).astype(F32) + v

    written = written_rows(rows, limit, BLOCK)
    for got, want in zip(
        interpreted(function, [x, v], limit, tile=tile), reference(function, [x, v], limit), strict=True
    ):
        assert_same(got[:written], want[:written], exact=False)


@pytest.mark.parametrize("limit_axis", [None, 0])
def test_vmap(limit_axis):
    x, y = operands_of(matrices(WIDTH, WIDTH), ROWS)
    limit = jnp.int32(200) if limit_axis is None else jnp.array([200, 0])

    def batched(implementation):
        def one(x, y, limit):
            return valid_rows(lambda x, y: x * y + 1, limit, implementation=implementation)(x, y)

        return jax.jit(jax.vmap(one, (0, 0, limit_axis)))(jnp.stack([x, -x]), jnp.stack([y, y]), limit)

    got, want = batched("interpret"), batched("xla")
    for example, valid in enumerate(np.broadcast_to(limit, 2)):
        np.testing.assert_array_equal(bits(got[example, :valid]), bits(want[example, :valid]))


@pytest.mark.parametrize("gate", ["silu", "gelu"])
def test_every_bfloat16_as_the_gate(gate):
    gates = every_bfloat16()
    fused = jnp.concatenate([gates, jnp.full_like(gates, 1.5)], axis=1)
    act = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[gate]

    def function(fused):
        return act(fused[:, :128]) * fused[:, 128:]

    (got,), (want,) = interpreted(function, [fused], 512), reference(function, [fused], 512)
    np.testing.assert_array_equal(bits(got), bits(want))


def test_what_two_results_share_is_computed_side_by_side():
    kernel = make_kernel(glu_bwd, operands_of(matrices(2 * WIDTH, WIDTH), ROWS))
    (group,) = lockstep(kernel.program, kernel.roles)
    assert [(piece.width, piece.offset) for piece in group] == [(WIDTH, 0), (WIDTH, WIDTH)]
    kernel = make_kernel(unsort_bwd, operands_of(FUNCTIONS["unsort_bwd"][1], ROWS))
    (group,) = lockstep(kernel.program, kernel.roles)
    assert sorted(piece.is_sum for piece in group) == [False, True]


def test_a_tree_comes_back_and_limits_are_clipped():
    (x,) = operands_of(matrices(WIDTH), ROWS)
    out = valid_rows(lambda x: {"a": x + 1, "b": (x * 2,)}, 10**6, implementation="interpret")(x)
    np.testing.assert_array_equal(bits(out["a"]), bits(x + 1))
    np.testing.assert_array_equal(bits(out["b"][0]), bits(x * 2))
    nothing = valid_rows(lambda x: x + 1, -5)(x)
    assert not np.asarray(nothing, np.float32).any()


def test_traced_values_can_be_captured():
    (x,) = operands_of(matrices(WIDTH), ROWS)

    @partial(jax.jit, static_argnames="implementation")
    def run(x, scalar, bias, implementation):
        return valid_rows(lambda x: x * scalar + bias, ROWS, implementation=implementation)(x)

    arguments = x, jnp.float32(1.5), jnp.arange(WIDTH, dtype=F32)
    np.testing.assert_array_equal(bits(run(*arguments, "interpret")), bits(run(*arguments, "xla")))


def test_a_donated_operand_keeps_the_rows_that_nobody_writes():
    x, y = (value.astype(F32) for value in operands_of(matrices(WIDTH, WIDTH), ROWS))
    add = valid_rows(lambda x, y: x + y, 7, donate={1: 0}, implementation="interpret")
    got = jax.jit(add)(x, y)
    written = blocks_for(ROWS, 3 * WIDTH * 4, 0, 1, V6E).rows
    np.testing.assert_array_equal(bits(got[:7]), bits((x + y)[:7]))
    np.testing.assert_array_equal(bits(got[written:]), bits(y[written:]))
    assert not np.asarray(got[7:written]).any()


REFUSED = {
    "a matmul": (lambda x: x @ jnp.ones((WIDTH, 4), x.dtype), "dot_general is not among the operations"),
    "a cumulative sum": (lambda x: jnp.cumsum(x, axis=1), "cumsum is not among the operations"),
    "a transpose": (lambda x: x.T @ x, "transpose is not among|dot_general is not among"),
    "every other row": (lambda x: x[::2], "slice is not row-wise: it has a stride"),
    "some rows": (lambda x: x[:5], "slice is not row-wise: it takes some rows of many"),
    "a mean over rows": (lambda x: x - x.mean(0), "reduce_sum is not row-wise: it reduces over rows"),
    "all at once": (lambda x: x / x.sum(), "reduce_sum is not row-wise: it reduces over rows"),
    "rows joined": (lambda x: jnp.concatenate([x, x]), "concatenate is not row-wise: it is not over columns"),
    "rows padded": (lambda x: jnp.pad(x, ((1, 0), (0, 0))), "pad is not row-wise: it is not at the ends"),
    "three dimensions": (lambda x: x.reshape(ROWS, 2, -1).sum(1), "reshape is not row-wise: from"),
    "a scalar": (lambda x: 1.0, r"a result has shape \[\], not \[300\] or \[300, columns\]"),
    "captured rows": (lambda x: x + np.ones((ROWS, 1), np.float32), "what differs by row must be an operand"),
    "rows as columns": (
        lambda x: x[:, :1] + jnp.broadcast_to(jnp.sum(x, axis=1), (ROWS, ROWS)),
        "broadcast_in_dim is not row-wise: it turns rows into columns",
    ),
    "a constant sum": (
        lambda x: x + jnp.sum(jnp.broadcast_to(SCALE, x.shape), axis=1)[:, None],
        "reduce_sum is not row-wise: it reduces what is the same in all rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_rows_is_refused_by_name(name):
    function, message = REFUSED[name]
    (x,) = operands_of(matrices(WIDTH), ROWS)
    with pytest.raises(NotRowWiseError, match=message):
        valid_rows(function, 3)(x)
    assert supports(function, x, chip=V6E) is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: valid_rows(jnp.add, 3)(x, SCALE), r"operand 1 has shape \[256\], not \[300\] or"),
        (lambda x: valid_rows(lambda: 1, 3)(), "the first operand must be"),
        (lambda x: valid_rows(jnp.sin, 3.5)(x), "limit must be one integer"),
        (lambda x: valid_rows(jnp.sin, 3, donate={0: 1})(x), "there is no such operand or result"),
        (
            lambda x: valid_rows(lambda x: x[:, :9], 3, donate={0: 0})(x),
            r"operand 0 is bfloat16\[300, 256\], its result is bfloat16\[300, 9\]",
        ),
        (
            lambda x: valid_rows(jnp.sin, 3, implementation="interpret")(x.astype(jnp.float16)),
            "cannot run: the kernel reads and writes bfloat16, float32, int32, not float16",
        ),
        (
            lambda x: valid_rows(lambda x: x > 0, 3, implementation="interpret")(x),
            r"cannot run: the kernel takes booleans as one operand per row, not as \[300, 256\] or as a result",
        ),
        (
            lambda x: valid_rows(jnp.sin, 3, implementation="interpret")(jnp.zeros((1, 1 << 20))),
            "cannot run: rows of 8388608 bytes over all operands and results do not fit VMEM",
        ),
        (
            lambda x: jax.grad(lambda x: valid_rows(jnp.sin, 3)(x).sum())(x.astype(F32)),
            "valid_rows has no gradient: differentiate the function first",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    (x,) = operands_of(matrices(WIDTH), ROWS)
    with pytest.raises(ValueError, match=message):
        call(x)


def test_supports_returns_the_reason():
    x = jax.ShapeDtypeStruct((ROWS, 2 * WIDTH), jnp.bfloat16)
    assert supports(glu, x, chip=V6E) is None
    assert supports(glu, x, chip=None) == "the kernel is for TPU"
    for chip in (V6E, None):
        assert "not float16" in str(supports(jnp.sin, jax.ShapeDtypeStruct((8, 8), jnp.float16), chip=chip))


@pytest.mark.parametrize("vmem", [16 << 20, 64 << 20, 128 << 20])
def test_blocks_fit_vmem(vmem):
    chip = replace(V6E, vmem_bytes=vmem)
    for row_bytes in (128, 6 * 1024, 24 * 1024, 40 * 1024):
        for vectors in (0, 2):
            for operations in (3, 30):
                blocks = blocks_for(225_280, row_bytes, vectors, operations, chip)
                assert blocks is not None
                assert blocks.rows % blocks.tile_rows == 0
                assert blocks.rows % (128 if vectors else 16) == 0
                assert blocks.rows * (2 * row_bytes + vectors * 512) <= chip.window_bytes


def test_row_numbers_meet_a_number_that_is_known_when_it_runs():
    x = normal(0, (ROWS, WIDTH), jnp.bfloat16)

    def run(x, end, limit, implementation):
        def rows(x):
            row = jnp.arange(ROWS)
            kept = jnp.where((row < end)[:, None], x, 1)
            return kept, jnp.where(row >= jnp.minimum(end * 2, ROWS), 2, row + end)

        return valid_rows(rows, limit, implementation=implementation)(x)

    for end in (0, 1, 77, ROWS):
        kernel, plain = (run(x, jnp.int32(end), jnp.int32(200), how) for how in ("interpret", "xla"))
        for got, wanted in zip(kernel, plain, strict=True):
            np.testing.assert_array_equal(
                np.asarray(got, np.float32)[:200], np.asarray(wanted, np.float32)[:200]
            )
