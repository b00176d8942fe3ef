"""Costs against figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hlo_builder import Body, HloBuilder
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.costs import Cost
from hloscope.analysis.costs_matmul import positions
from hloscope.analysis.costs_work import work_in
from hloscope.devices import chips
from hloscope.hlo import protos

V6E = chips()["v6e"]
HBM = 1_638_000_000_000
# Bytes a second that pass the registers in loops that use two thirds of three load and two store slots.
REGISTERS = 2 / 3 * 5 * 4096 * 1_750_000_000
MATRIX = 0.89 * 918e12


def streamed(moved: int) -> float:
    """Seconds of bytes that a core fetches and works on."""
    return moved / HBM + moved / REGISTERS


def cost_of_last(hlo: HloBuilder, **known: Any) -> Cost:
    known.setdefault("chip", V6E)
    analyses = Analyses(hlo.module(), **known)
    return analyses.costs.of(analyses.module.entry.root)


def copied(elements: int, kind: str = "bf16") -> HloBuilder:
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("copy", f"{kind}[{elements}]", entry.parameter(f"{kind}[{elements}]"))
    return hlo


@pytest.mark.parametrize(
    ("size", "measured"),
    [(2**21, 3.04), (2**23, 7.47), (2**25, 22.30), (2**28, 169.51), (2**33, 5351.18)],
)
def test_a_measured_copy(size: int, measured: float):
    """Bytes and microseconds on a tpu7x (benchmarks/published_measurements.toml)."""
    found = cost_of_last(copied(size // 2), chip=chips()["tpu7x"])
    assert found.seconds == pytest.approx(measured * 1e-6, rel=0.1 if size < 2**24 else 0.015)
    assert found.source_of_figure == "counted; checked on tpu7x"


def test_an_operation_through_hbm_has_a_latency_where_it_was_measured():
    tpu7x = chips()["tpu7x"]
    small = cost_of_last(copied(8192), chip=tpu7x)
    moved = 4 * 8192 / 3.69e12 + 4 * 8192 / (2 / 3 * 5 * 4096 * 1.9e9)
    assert small.bound_by == "latency"
    assert small.seconds == pytest.approx(1.7e-6 + moved)
    assert small.latency_seconds == small.bound_seconds == 1.7e-6
    counter = cost_of_last(copied(1, "s32"), chip=tpu7x)
    assert counter.bound_by == "bandwidth", "of scalars nothing was measured"
    assert cost_of_last(copied(8192), chip=chips()["v4"]).seconds == pytest.approx(4 * 8192 / 1.2e12)
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("bf16[8192]")
    entry.add("copy-start", "(bf16[8192]{0:T(1024)S(1)}, bf16[8192], u32[])", x)
    fetched = cost_of_last(hlo, chip=tpu7x)
    assert fetched.seconds == pytest.approx(2 * 8192 / 3.69e12), "what runs beside other work"


def dot_numbers(lhs: tuple[list[int], list[int]], rhs: tuple[list[int], list[int]]) -> dict[str, Any]:
    return {
        "dot_dimension_numbers": protos.DotDimensionNumbers(
            lhs_contracting_dimensions=lhs[0],
            lhs_batch_dimensions=lhs[1],
            rhs_contracting_dimensions=rhs[0],
            rhs_batch_dimensions=rhs[1],
        )
    }


def test_dot_with_a_batch_dimension_is_bound_by_compute():
    hlo = HloBuilder()
    entry = hlo.entry()
    x, w = entry.parameter("bf16[8,4096,2048]"), entry.parameter("bf16[8,2048,4096]")
    entry.add("dot", "bf16[8,4096,4096]", x, w, **dot_numbers(([2], [0]), ([1], [0])))
    cost = cost_of_last(hlo)
    assert cost.flops == 2 * 8 * 4096 * 4096 * 2048
    assert cost.hbm_bytes == 2 * 8 * (2 * 4096 * 2048 + 4096 * 4096)
    assert cost.seconds == pytest.approx(cost.flops / MATRIX)
    assert (cost.bound_by, cost.limit) == ("compute", None)


@pytest.mark.parametrize(
    ("types", "precision", "passes"),
    [
        (("bf16", "bf16"), [2, 2], 1),
        (("f32", "f32"), [], 1),
        (("f32", "f32"), [1, 1], 3),
        (("f32", "f32"), [2, 2], 6),
        (("bf16", "f32"), [2, 2], 3),
        (("s8", "s8"), [], 0.5),
    ],
)
def test_operands_of_32_bits_take_passes(types: tuple[str, str], precision: list[int], passes: float):
    hlo = HloBuilder()
    entry = hlo.entry()
    x, w = (entry.parameter(f"{t}[8192,8192]") for t in types)
    entry.add(
        "dot", "f32[8192,8192]", x, w,
        **dot_numbers(([1], []), ([0], [])),
        precision_config=protos.PrecisionConfig(operand_precision=precision),
    )  # fmt: skip
    found = cost_of_last(hlo)
    assert found.seconds == pytest.approx(2 * 8192**3 * passes / MATRIX)
    assert ("not calibrated" in found.source_of_figure) == (types[0] == "s8"), "only bfloat16 was timed"


@pytest.mark.parametrize("windows", [1, 8, None])
def test_nothing_hides_the_first_fetch_of_a_matmul(windows: int | None):
    hlo = HloBuilder()
    entry = hlo.entry()
    x, w = entry.parameter("bf16[2048,2048]"), entry.parameter("bf16[2048,2048]")
    config = None if windows is None else {"window_config": {"iteration_bounds": [str(windows), "1"]}}
    entry.add("dot", "bf16[2048,2048]", x, w, config=config, **dot_numbers(([1], []), ([0], [])))
    cost, moved = cost_of_last(hlo), 3 * 2048 * 2048 * 2
    matrix = 2 * 2048**3 / MATRIX
    assert cost.seconds == pytest.approx(matrix + (moved / HBM / windows if windows else 0))
    assert cost.bound_by == "compute"


@pytest.mark.parametrize(
    ("size", "low", "high", "operations", "limit"),
    [
        (2 * 2048 - 1, 2047, 2047, 1, None),  # each line reduced, the result spread over it again
        (2048, 2047, 0, 1 + 11, "lower"),  # a running sum
        (3, 1, 1, 1 + 2, "lower"),
    ],
)
def test_a_window_over_its_whole_dimension_is_one_reduction(
    size: int, low: int, high: int, operations: int, limit: str | None
):
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("f32[512,2048]{1,0:T(8,128)S(1)}")
    window = protos.Window(
        dimensions=[
            protos.WindowDimension(size=1, stride=1),
            protos.WindowDimension(size=size, stride=1, padding_low=low, padding_high=high),
        ]
    )
    entry.add("reduce-window", "f32[512,2048]{1,0:T(8,128)S(1)}", x, entry.parameter("f32[]"), window=window)
    root = hlo.module().entry.root
    work = work_in(root)
    assert (work.arithmetic, work.is_least) == (operations * 512 * 2048, limit == "lower")


def convolution(body: Body, dilated: bool) -> None:
    """A product of eight [128,256] x [256,512] as the TPU compiler spells it: the batch is a spatial dimension."""
    window = protos.WindowDimension(
        size=8, stride=7 if dilated else 1, window_dilation=1, base_dilation=8 if dilated else 1
    )
    window.padding_low = window.padding_high = 0
    body.add(
        "convolution", "bf16[8,128,512]",
        body.parameter("bf16[8,128,256]"), body.parameter("bf16[8,256,512]"),
        window=protos.Window(dimensions=[window]),
        convolution_dimension_numbers=protos.ConvolutionDimensionNumbers(
            input_batch_dimension=1, input_feature_dimension=2, input_spatial_dimensions=[0],
            kernel_input_feature_dimension=1, kernel_output_feature_dimension=2, kernel_spatial_dimensions=[0],
            output_batch_dimension=1, output_feature_dimension=2, output_spatial_dimensions=[0],
        ),
    )  # fmt: skip


def test_convolution_that_is_a_batched_dot_counts_as_one():
    hlo = HloBuilder()
    convolution(hlo.entry(), dilated=True)
    assert cost_of_last(hlo).flops == 2 * 8 * 128 * 256 * 512


def test_convolution_inside_a_fusion_is_counted():
    hlo = HloBuilder()
    body = hlo.computation("fused", fusion=True)
    convolution(body, dilated=True)
    entry = hlo.entry()
    x, w = entry.parameter("bf16[8,128,256]"), entry.parameter("bf16[8,256,512]")
    entry.add("fusion", "bf16[8,128,512]", x, w, calls=body, fusion_kind="kOutput")
    assert cost_of_last(hlo).flops == 2 * 8 * 128 * 256 * 512


small = st.integers(1, 7)


@given(small, small, st.integers(-3, 9), small, small, small, small)
def test_positions_of_a_window_are_those_that_meet_an_input(
    size: int, stride: int, low: int, dilation: int, base: int, n_in: int, n_out: int
):
    places = [o * stride - low + k * dilation for k in range(size) for o in range(n_out)]
    meeting = sum(x >= 0 and x % base == 0 and x // base < n_in for x in places)
    assert positions(size, stride, low, dilation, base, n_in, n_out) == meeting


def elementwise(space: str = "") -> HloBuilder:
    hlo = HloBuilder()
    body = hlo.computation("fused", fusion=True)
    p = body.parameter("f32[65536,1024]")
    q = body.parameter("f32[65536,1024]")
    body.add("add", "f32[65536,1024]", p, q)
    entry = hlo.entry()
    x = entry.parameter("f32[65536,1024]{1,0:T(8,128)" + space + "}")
    y = entry.parameter("f32[65536,1024]{1,0:T(8,128)}")
    entry.add("fusion", "f32[65536,1024]{1,0:T(8,128)}", x, y, calls=body, fusion_kind="kLoop")
    return hlo


def test_elementwise_fusion_is_bound_by_bandwidth():
    cost = cost_of_last(elementwise())
    assert cost.hbm_bytes == 3 * 65536 * 1024 * 4
    assert cost.seconds == pytest.approx(streamed(cost.hbm_bytes))
    assert cost.bound_seconds == pytest.approx(cost.hbm_bytes / HBM)
    assert (cost.flops, cost.bound_by) == (0, "bandwidth")
    assert "checked on v6e" in cost.source_of_figure


def test_operand_in_vmem_costs_no_bandwidth():
    assert cost_of_last(elementwise("S(1)")).hbm_bytes == 2 * 65536 * 1024 * 4


def test_work_in_vmem_is_bound_by_issue():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("f32[4096,1024]{1,0:T(8,128)S(1)}")
    entry.add("exponential", "f32[4096,1024]{1,0:T(8,128)S(1)}", x)
    cost = cost_of_last(hlo)
    assert (cost.hbm_bytes, cost.transcendentals, cost.bound_by) == (0, 4096 * 1024, "issue")
    assert cost.seconds == pytest.approx(4096 / 1.75e9)  # one register of 1024 elements a cycle


def test_update_in_place_costs_what_it_touches():
    hlo = HloBuilder()
    body = hlo.computation("fused", fusion=True)
    buffer, update = body.parameter("f32[512,1024]"), body.parameter("f32[8,1024]")
    start = body.parameter("s32[]")
    body.add("dynamic-update-slice", "f32[512,1024]", buffer, update, start, start)
    entry = hlo.entry()
    entry.add(
        "fusion", "f32[512,1024]",
        entry.parameter("f32[512,1024]"), entry.parameter("f32[8,1024]"), entry.parameter("s32[]"),
        calls=body, fusion_kind="kLoop",
    )  # fmt: skip
    assert cost_of_last(hlo).hbm_bytes == 2 * 8 * 1024 * 4 + 4


def test_only_the_slice_that_is_needed_is_computed():
    hlo = HloBuilder()
    body = hlo.computation("fused", fusion=True)
    stack, at = body.parameter("f32[64,1024,1024]{2,1,0:S(1)}"), body.parameter("s32[]")
    scaled = body.add("exponential", "f32[64,1024,1024]", stack)
    body.add("dynamic-slice", "f32[1,1024,1024]", scaled, at, at, at)
    entry = hlo.entry()
    entry.add(
        "fusion", "f32[1,1024,1024]",
        entry.parameter("f32[64,1024,1024]"), entry.parameter("s32[]"), calls=body, fusion_kind="kLoop",
    )  # fmt: skip
    assert cost_of_last(hlo).transcendentals == 1024 * 1024


def grouped(**known: Any) -> Cost:
    hlo = HloBuilder()
    entry = hlo.entry()
    sizes, x = entry.parameter("s32[9]"), entry.parameter("bf16[4096,2048]")
    w = entry.parameter("bf16[8,2048,1024]")
    entry.add(
        "custom-call", "bf16[4096,1024]", sizes, x, w, name="gmm.1", custom_call_target="tpu_custom_call"
    )
    return cost_of_last(hlo, **known)


def test_grouped_matmul_costs_its_valid_rows():
    weights = 9 * 4 + 8 * 2048 * 1024 * 2
    whole, half = grouped(), grouped(valid_fraction=0.5, valid_fraction_source="option")
    assert (whole.flops, whole.limit) == (2 * 4096 * 2048 * 1024, "upper")
    assert whole.hbm_bytes == weights + 4096 * 3072 * 2
    assert (half.flops, half.limit) == (4096 * 2048 * 1024, None)
    assert half.hbm_bytes == weights + 4096 * 3072


def limited(**known: Any) -> Cost:
    """A kernel over the rows of a grouped matmul, with the number of valid ones as a scalar."""
    hlo = HloBuilder()
    entry = hlo.entry()
    sizes, x = entry.parameter("s32[9]"), entry.parameter("bf16[4096,2048]")
    limit, w = entry.parameter("s32[]"), entry.parameter("bf16[8,2048,1024]")
    y = entry.add("custom-call", "bf16[4096,1024]", sizes, x, w, custom_call_target="tpu_custom_call")
    entry.add("custom-call", "bf16[4096,512]", limit, y, custom_call_target="tpu_custom_call")
    return cost_of_last(hlo, **known)


def test_kernel_with_a_row_limit_streams_its_valid_rows():
    whole, half = limited(), limited(valid_fraction=0.5, valid_fraction_source="option")
    assert (whole.hbm_bytes, whole.limit) == (4 + 4096 * 1536 * 2, "upper")
    assert half.hbm_bytes == 4 + 4096 * 1536
    assert half.seconds == pytest.approx(streamed(half.hbm_bytes))


def told_of_rows(flops: int) -> Cost:
    hlo = HloBuilder()
    entry = hlo.entry()
    sizes, x = entry.parameter("s32[9]"), entry.parameter("bf16[4096,2048]")
    limit, w = entry.parameter("s32[]"), entry.parameter("bf16[8,2048,1024]")
    y = entry.add("custom-call", "bf16[4096,1024]", sizes, x, w, custom_call_target="tpu_custom_call")
    told = {"flops": str(flops), "bytes_accessed": "0", "transcendentals": "4194304"}
    config = {"custom_call_config": {"cost_estimate": told}}
    entry.add("custom-call", "bf16[4096,512]", limit, y, custom_call_target="tpu_custom_call", config=config)
    return cost_of_last(hlo, valid_fraction=0.5, valid_fraction_source="option")


def test_vector_work_of_a_kernel_with_a_row_limit_is_what_it_tells_of_valid_rows():
    moved = 4 + 4096 * 1536
    # Four operations a cycle, each on 1024 elements.
    assert told_of_rows(20 * 2**23).seconds == pytest.approx(moved / HBM + 20 * 2**22 / 4096 / 1.75e9)
    assert told_of_rows(20 * 2**23).transcendentals == 2097152
    # What does more for each byte multiplies matrices; then nobody knows what it does on vectors.
    other = told_of_rows(2**40)
    assert other.seconds == pytest.approx(moved / HBM + 2097152 / 1024 / 1.75e9)
    assert other.limit == "lower"


def opaque(config: dict[str, Any] | None = None) -> Cost:
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("f32[4096,1024]")
    entry.add("custom-call", "f32[4096,1024]", x, custom_call_target="tpu_custom_call", config=config)
    return cost_of_last(hlo)


def test_opaque_kernel_takes_at_least_its_streaming_time():
    cost = opaque()
    assert (cost.flops, cost.limit, cost.bound_by) == (None, "lower", "bandwidth")
    assert cost.seconds == pytest.approx(streamed(2 * 4096 * 1024 * 4))


def test_what_a_kernel_says_of_itself_is_told_as_such():
    told = {"flops": "1000000000000", "bytes_accessed": "0", "transcendentals": "0"}
    cost = opaque({"custom_call_config": {"cost_estimate": told}})
    assert (cost.flops, cost.bound_by) == (10**12, "compute")
    assert "own cost estimate" in cost.source_of_figure


def attention(result: str, *more: str) -> Cost:
    hlo = HloBuilder()
    entry = hlo.entry()
    q, kv = "bf16[16,2048,192]", "bf16[4,2048,192]"
    operands = [entry.parameter(s) for s in (q, kv, "bf16[4,2048,128]", *more)]
    entry.add("custom-call", result, *operands, custom_call_target="tpu_custom_call")
    return cost_of_last(hlo)


def test_attention_kernels_are_told_by_their_operands():
    scores, gradient = 2 * 16 * 2048 * 2048, "bf16[16,2048,128]"
    forward = attention("(bf16[16,2048,128], f32[16,2048,128])")
    assert (forward.flops, forward.limit) == (scores * (192 + 128), "upper")
    assert attention("bf16[16,2048,192]", gradient).flops == scores * (2 * 192 + 128)
    to_k_and_v = "(bf16[4,2048,192], bf16[4,2048,128])"
    assert attention(to_k_and_v, gradient).flops == scores * (2 * 192 + 2 * 128)
    fused = "(bf16[2,16,2048,192], bf16[4,2048,192], bf16[4,2048,128])"
    assert attention(fused, gradient).flops == scores * (3 * 192 + 2 * 128)


def test_asynchronous_copy_costs_at_its_start_only():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("f32[1024,1024]")
    there = "f32[1024,1024]{1,0:S(1)}"
    start = entry.add("copy-start", f"({there}, f32[1024,1024], u32[])", x)
    entry.add("copy-done", there, start)
    analyses = Analyses(hlo.module(), chip=V6E)
    _, started, done = analyses.module.entry.instructions
    assert analyses.costs.of(started).seconds == pytest.approx(1024 * 1024 * 4 / HBM)
    assert analyses.costs.of(done).seconds == 0


def test_unknown_chip_leaves_bytes_and_operations():
    cost = cost_of_last(elementwise(), chip=None)
    assert (cost.seconds, cost.bound_by, cost.hbm_bytes) == (None, None, 3 * 65536 * 1024 * 4)


def test_unknown_size_has_no_time():
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("negate", "f32[<=64,128]", entry.parameter("f32[<=64,128]"))
    cost = cost_of_last(hlo)
    assert (cost.seconds, cost.hbm_bytes) == (None, None)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_more_bytes_never_take_less_time(a: int, b: int):
    def seconds(rows: int) -> float:
        hlo = HloBuilder()
        entry = hlo.entry()
        entry.add("negate", f"f32[{rows},128]", entry.parameter(f"f32[{rows},128]"))
        found = cost_of_last(hlo).seconds
        assert found is not None
        return found

    assert (seconds(a) <= seconds(b)) == (a <= b)
