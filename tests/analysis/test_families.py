from __future__ import annotations

from collections.abc import Callable

import pytest
from hlo_builder import Body, HloBuilder

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.census import Family
from hloscope.analysis.families import family_of
from hloscope.hlo import Module

ROWS = "bf16[1024,512]"
FORWARD, BACKWARD = "jit(step)/jvp()/", "jit(step)/transpose(jvp())/"


def only(module: Module) -> Family:
    (family,) = Analyses(module).census.families
    return family


def fusion_of(*opcodes: str, **fields: object) -> HloBuilder:
    """A fusion of a chain of instructions over [rows, columns]."""
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    value = body.parameter(ROWS)
    for opcode in opcodes:
        value = body.add(opcode, ROWS, value)
    entry = hlo.entry()
    entry.add("fusion", ROWS, entry.parameter(ROWS), **{"calls": body, "fusion_kind": "kLoop", **fields})
    return hlo


def family(*opcodes: str, op_name: str = "") -> str:
    return only(fusion_of(*opcodes, op_name=op_name).module()).family


SIGMOID = ("negate", "exponential", "add", "divide", "multiply")


def at_matmul(build: Callable[[Body], None], shape: str = ROWS, *, before: bool = True) -> str:
    """The family of a fusion that a grouped matmul feeds, or whose result it takes."""
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    build(body)
    entry = hlo.entry()
    kernel = {"custom_call_target": "tpu_custom_call"}
    inputs = [entry.parameter("bf16[1024,512]") for p in body.proto.instructions if p.opcode == "parameter"]
    if before:
        inputs[0] = entry.add("custom-call", ROWS, *inputs, name="ragged-dot-none.3", **kernel)
    fusion = entry.add("fusion", shape, *inputs, calls=body, fusion_kind="kLoop", op_name=BACKWARD + "mul")
    if not before:
        taken = entry.add("get-tuple-element", ROWS, fusion)
        entry.add("custom-call", ROWS, taken, name="gmm.9", **kernel)
    return family_of(hlo.module().find(fusion.name))


@pytest.mark.parametrize(("direction", "expected"), [("EQ", "cross entropy"), ("GE", "softmax")])
def test_a_one_hot_makes_a_loss_and_a_mask_does_not(direction: str, expected: str):
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    logits, labels = body.parameter(ROWS), body.parameter("s32[1024]")
    columns = body.add("broadcast", "s32[1024,512]", body.add("iota", "s32[512]"))
    marked = body.add("broadcast", "s32[1024,512]", labels)
    chosen = body.add("compare", "pred[1024,512]", marked, columns, comparison_direction=direction)
    power = body.add("exponential", ROWS, body.add("subtract", ROWS, logits, logits))
    body.add("reduce", "bf16[1024]", body.add("select", ROWS, chosen, power, logits))
    entry = hlo.entry()
    inputs = entry.parameter(ROWS), entry.parameter("s32[1024]")
    entry.add(
        "fusion", "bf16[1024]", *inputs, calls=body, fusion_kind="kLoop", op_name=FORWARD + "reduce_sum"
    )
    assert only(hlo.module()).family == expected


def sigmoid(body: Body) -> None:
    value = body.parameter(ROWS)
    for opcode in SIGMOID:
        value = body.add(opcode, ROWS, value)


def weighted_rows(body: Body) -> None:
    product = body.add("multiply", ROWS, body.parameter(ROWS), body.parameter(ROWS))
    dot = body.add("reduce", "f32[1024]", product, body.add("constant", "f32[]"))
    body.add("tuple", f"({ROWS}, f32[1024])", product, dot)


@pytest.mark.parametrize("before", [True, False])
def test_dataflow_names_an_activation(before: bool):
    assert at_matmul(sigmoid, before=before) == "activation"


def test_dataflow_names_an_unsort():
    assert at_matmul(weighted_rows, f"({ROWS}, f32[1024])") == "unsort"


@pytest.mark.parametrize(
    ("opcodes", "op_name", "expected"),
    [
        (SIGMOID, FORWARD + "ffn_act/mul", "activation"),
        (SIGMOID, FORWARD + "jit(silu)/mul", "activation"),
        (("tanh", "multiply"), FORWARD + "jit(gelu)/mul", "activation"),
        (SIGMOID, FORWARD + "gate/mul", "mul"),  # neither a scope nor a matmul: not told
        (("subtract", "exponential", "reduce"), FORWARD + "reduce_sum", "softmax"),
        (("subtract", "exponential", "log", "reduce"), FORWARD + "reduce_sum", "cross entropy"),
        (("multiply", "reduce"), FORWARD + "ragged-unsort-bwd/reduce_sum", "unsort"),
        (("convert", "select"), FORWARD + "ragged-unsort-fwd/convert_element_type", "select"),
        (("multiply", "sqrt", "divide"), "jit(step)/div", "optimizer"),
        (("multiply", "sqrt", "divide"), FORWARD + "div", "div"),
        (("multiply", "rsqrt"), FORWARD + "rsqrt", "rmsnorm"),
        (("cosine", "multiply"), FORWARD + "mul", "rope"),
        (("dot",), FORWARD + "dot_general", "matmul"),
        (("convolution", "exponential"), FORWARD + "attention/dot_general", "attention"),
        (("convolution",), FORWARD + "attention/dot_general", "matmul"),
        (("convolution",), FORWARD + "conv_general_dilated", "convolution"),
        (("convolution",), FORWARD + "ragged_dot_general", "grouped matmul"),
        (("pad", "maximum"), FORWARD + "concatenate", "concatenate"),
        (("gather",), FORWARD + "gather", "gather"),
        (("scatter",), FORWARD + "scatter-add", "scatter"),
        (("convert",), FORWARD + "convert_element_type", "cast"),
        (("copy",), FORWARD + "transpose", "copy"),
        (("reduce", "convert"), FORWARD + "reduce_sum", "reduce"),
        (("slice",), FORWARD + "split", "slice"),
        (("add", "multiply"), FORWARD + "while/body/add_any", "add"),
        (("add", "multiply"), FORWARD + "while/body/convert_element_type", "elementwise"),
        (("add", "multiply"), FORWARD + "...k,k->...k/dot_general", "elementwise"),
        (("add", "multiply"), FORWARD + "shard_map/jit(clip)/custom_jvp_call", "elementwise"),
        (("add", "multiply"), "", "elementwise"),
        (("add", "multiply"), "multiply.340", "elementwise"),
    ],
)
def test_names_of_fusions(opcodes: tuple[str, ...], op_name: str, expected: str):
    assert family(*opcodes, op_name=op_name) == expected


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("tgmm.12", "tpu_custom_call", "tgmm"),
        (
            "splash_mha_fwd_segmented_residuals.3.clone",
            "tpu_custom_call",
            "splash_mha_fwd_segmented_residuals",
        ),
        ("ragged-dot-none.4", "tpu_custom_call", "ragged-dot"),
        ("ragged-dot-metadata.1", "tpu_custom_call", "ragged-dot-metadata"),
        ("gmm_v2-g_32-m_32768-k_768-act_None-tn_1024.7", "tpu_custom_call", "gmm_v2"),
        ("gmm.3.kernel_args_2_", "tpu_custom_call", "gmm"),
        ("sc_ragged_gather_reduce_v2.3", "tpu_custom_call", "sc_ragged_gather_reduce_v2"),
        ("custom-call.790", "InvertDiagBlocksLowerTriangular", "InvertDiagBlocksLowerTriangular"),
    ],
)
def test_names_of_kernels(name: str, target: str, expected: str):
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("custom-call", ROWS, entry.parameter(ROWS), name=name, custom_call_target=target)
    assert only(hlo.module()).family == expected
