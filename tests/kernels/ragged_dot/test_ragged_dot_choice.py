"""Which implementation `auto` takes, and what it says about it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from tpu_chips import CHIPS

from hloscope_kernels.chip import Chip
from hloscope_kernels.ragged_dot import explain, unsupported
from hloscope_kernels.ragged_dot.choose import IMPLEMENTATIONS, Problem, choose, regions
from hloscope_kernels.ragged_dot.shapes import REAL_SHAPES, TRITON_BEST, TRITON_WORST, Shape
from hloscope_kernels.ragged_dot.tiles import (
    LANES,
    ElementBytes,
    contraction_bytes,
    contraction_tiles,
    dot_bytes,
    dot_tiles,
    parts,
    vmem_budget,
)

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
BF16 = ElementBytes(lhs=2, rhs=2, out=2)
F32 = ElementBytes(lhs=4, rhs=4, out=4)


def problem(shape: Shape, dtype: str = "bfloat16") -> Problem:
    return Problem(
        operation="dot", m=shape.m, k=shape.k, n=shape.n, groups=shape.groups, dtypes=(dtype, dtype, dtype)
    )


def test_the_published_best_and_worst_cases() -> None:
    best = choose(problem(TRITON_BEST), A100)
    assert best.implementation == "pallas_gpu"
    assert "3.40x" in best.reason
    assert "measured" in best.reason
    worst = choose(problem(TRITON_WORST), A100)
    assert worst.implementation == "xla"
    assert worst.reason == "outside the sizes for which another was found faster"


@pytest.mark.parametrize(
    ("device", "edge"),
    [
        (A100, {"m": 4096, "k": 512, "n": 1024, "groups": 16}),
        (A100, {"m": 4096, "k": 1024, "n": 512, "groups": 16}),
        (H100, {"m": 4096, "k": 1024, "n": 2048, "groups": 16}),
    ],
)
def test_the_edges_of_the_measured_regions(device: str, edge: dict[str, int]) -> None:
    at = Problem(operation="dot", dtypes=("bfloat16", "bfloat16", "bfloat16"), **edge)
    assert choose(at, device).implementation == "pallas_gpu"
    for name in edge:
        assert choose(replace(at, **{name: edge[name] - 1}), device).implementation == "xla", name


def test_float32_was_not_compared_and_stays_with_xla() -> None:
    assert choose(problem(TRITON_BEST, "float32"), A100).implementation == "xla"


def test_a_device_that_was_never_compared() -> None:
    assert choose(problem(TRITON_BEST), "cpu").reason == "nothing was compared on cpu"


def test_explain_covers_the_gradients_and_a_list_of_weights() -> None:
    lhs = jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16)
    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)] * 32
    lines = explain(lhs, weights, device="TPU v6 lite").splitlines()
    assert [line.split(":")[:2] for line in lines[:3]] == [
        ["result", " pallas_tpu"],
        ["d_lhs", " pallas_tpu"],
        ["d_rhs", " pallas_tpu"],
    ]
    assert all("static" in line for line in lines[:3])
    assert "copies all of them" not in lines[0]
    assert "copies all of them" in lines[1]
    assert lines[3] == "rhs: 32 arrays are stacked: a copy of 256.0 MiB a call, and one of their gradient"


def test_explain_without_a_device_is_about_this_one() -> None:
    assert "nothing was compared on cpu" in explain(jnp.ones((8, 4)), jnp.ones((2, 4, 3)))


def test_every_region_is_whole() -> None:
    assert regions()
    for region in regions():
        assert region.implementation in IMPLEMENTATIONS[1:]
        assert region.implementation != "xla"
        assert region.basis in ("measured", "static")
        assert region.devices
        assert region.operations
        assert set(region.operations) <= {"dot", "transposed", "contraction"}
        assert region.larger >= region.smaller > 0
        assert region.rows > 0
        assert region.groups > 0
        assert region.reason
        assert region.source


def test_support_says_why() -> None:
    shape = problem(TRITON_BEST)
    assert unsupported("xla", shape, "cpu") is None
    assert unsupported("pallas_gpu", shape, H100) is None
    assert "it needs a TPU and this trace is for 'cpu'" in (unsupported("pallas_tpu", shape, "cpu") or "")
    assert unsupported("pallas_tpu", shape, "cpu", interpret=True) is None
    long = replace(shape, m=10_000_000)
    assert "SMEM holds 32768" in (unsupported("pallas_tpu", long, "cpu", interpret=True) or "")


@pytest.mark.parametrize("element", [BF16, F32], ids=["bf16", "f32"])
@pytest.mark.parametrize("shape", REAL_SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_tiles_fit_and_pad_little(chip: Chip, shape: Shape, element: ElementBytes) -> None:
    dot = dot_tiles(chip, element, m=shape.m, k=shape.k, n=shape.n, groups=shape.groups)
    contraction = contraction_tiles(chip, element, m=shape.m, p=shape.k, q=shape.n)
    assert dot_bytes(dot, element) <= vmem_budget(chip) < chip.vmem_bytes
    assert contraction_bytes(contraction, element) <= vmem_budget(chip)
    for tiles in (dot, contraction):
        for width, tile in ((shape.k, tiles.inner), (shape.n, tiles.outer)):
            assert tile == width or tile % LANES == 0
            assert parts(width, tile) * tile <= 1.1 * width
    assert parts(shape.n, dot.outer) % chip.cores == 0
