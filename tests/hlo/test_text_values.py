"""Shapes, names, operands and constants of HLO text."""

from __future__ import annotations

import struct

import pytest
from text_cases import ADD, PQ, P, entry, one, read

from hloscope.hlo import protos


@pytest.mark.parametrize(
    "shape",
    [
        "f32[]", "bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", "s4[64]{0:T(512)E(4)}", "pred[2,3]{0,1}",
        "f32[4]{0:T(*,8)}", "((f32[2]{0}, s32[]), u32[]{:S(2)})", "()", "token[]", "f32[0]{0}", "c128[1]{0}",
        "f8e4m3fn[16]{0}", "f32[<=10,4]{1,0}", "f32[]{:T(128)}",
    ],
)  # fmt: skip
def test_shapes_are_printed_as_they_were_read(shape: str) -> None:
    assert str(one(f"x = {shape} parameter(0)").shape) == shape


def test_a_tuple_with_counted_elements() -> None:
    shape = one("x = (f32[1]{0}, f32[2]{0}, /*index=2*/f32[3]{0}) parameter(0)").shape
    assert [s.dimensions for s in shape.tuple_shapes or ()] == [(1,), (2,), (3,)]


def test_a_shape_without_layout_has_none() -> None:
    assert one("x = f32[2,3] parameter(0)").shape.layout is None


def test_unbounded_and_dynamic_dimensions() -> None:
    assert one("x = f32[?,<=3,4] parameter(0)").shape.dynamic == (True, True, False)


def test_what_the_model_does_not_wrap_of_a_layout_is_in_the_message() -> None:
    sparse = one("x = f32[4,4]{1,0:D(D,C+~)L(2)#(u32)*(u64)SC(0:1,2)M(8)} parameter(0)")
    layout = protos.Shape.FromString(sparse.proto.shape).layout
    assert list(layout.dim_level_types) == [0, 1]
    assert (list(layout.dim_unique), list(layout.dim_ordered)) == ([True, False], [True, False])
    assert layout.tail_padding_alignment_in_elements == 2
    assert (layout.index_primitive_type, layout.pointer_primitive_type) == (8, 9)
    assert list(layout.split_configs[0].split_indices) == [1, 2]
    assert layout.dynamic_shape_metadata_prefix_bytes == 8


def test_a_physical_shape_and_a_buffer() -> None:
    sparse = one("x = f32[2,2]{1,0:D(D,C)P((s32[3]{0}, f32[4]{0}))} parameter(0)")
    layout = protos.Shape.FromString(sparse.proto.shape).layout
    assert len(layout.physical_shape.tuple_shapes) == 2
    assert one("x = b(f32[3]{0}) parameter(0)").shape.short == "f32[3]"


def test_names_with_or_without_percent_and_the_last_is_the_root() -> None:
    module = entry("%x = f32[] parameter(0)", "y = f32[] negate(x)", "z = f32[] add(%x, %y)")
    assert module.entry.root.name == "z"
    assert [o.name for o in module.entry.root.operands] == ["x", "y"]


def test_a_root_that_is_not_last() -> None:
    assert entry("ROOT x = f32[] parameter(0)", "y = f32[] negate(x)").entry.root.name == "x"


def test_operands_may_come_after_their_users() -> None:
    module = entry("ROOT z = f32[] add(x, y)", "y = f32[] negate(x)", "x = f32[] parameter(0)")
    assert [i.name for i in module.entry] == ["x", "y", "z"]
    assert module.entry.root.name == "z"


def test_computations_may_come_after_their_callers() -> None:
    module = read(
        "HloModule m\nENTRY main {\n ROOT c = f32[] call(), to_apply=one\n}\n"
        "one {\n r = f32[] call(), to_apply=two\n}\ntwo {\n k = f32[] constant(1)\n}\n"
    )
    assert [c.name for c in module.computations] == ["two", "one", "main"]
    assert module.entry.name == "main"


def test_without_entry_the_last_computation_is_it() -> None:
    assert (
        read("HloModule m\na {\n x = f32[] parameter(0)\n}\nb {\n y = f32[] parameter(0)\n}").entry.name
        == "b"
    )


def test_a_name_in_two_computations_is_made_unique() -> None:
    module = read("HloModule m\na {\n p = f32[] parameter(0)\n}\nENTRY b {\n p = s32[] parameter(0)\n}")
    assert [i.name for i in module.instructions] == ["p", "p.1"]


def test_scheduled_text_runs_in_its_order() -> None:
    module = entry("a = f32[] parameter(0)", "b = f32[] constant(1)", head="HloModule m, is_scheduled=true")
    assert module.is_scheduled
    assert [i.name for i in module.entry.schedule] == ["a", "b"]
    assert not entry("a = f32[] parameter(0)").is_scheduled


def test_bodies_of_fusions_are_not_scheduled() -> None:
    module = entry(
        P,
        "f = f32[8,16]{1,0} fusion(p), kind=kLoop, calls=body",
        head="HloModule m, is_scheduled=true",
        before="body {\n a = f32[8,16]{1,0} parameter(0)\n ROOT n = f32[8,16]{1,0} negate(a)\n}",
    )
    body = module.entry.root.called_computations[0]
    assert (body.is_fusion, body.id in module.proto.schedule.sequences) == (True, False)
    assert module.entry.root.fusion_kind == "kLoop"


def test_element_references_become_get_tuple_elements_once() -> None:
    module = entry("t = (f32[2]{0}, (s32[], pred[])) parameter(0)", "x = f32[2]{0} f(t#0, t#1#0, t#0)")
    root = module.entry.root
    assert [(o.opcode, o.name, str(o.shape)) for o in root.operands] == [
        ("get-tuple-element", "t#0", "f32[2]{0}"),
        ("get-tuple-element", "t#1#0", "s32[]"),
        ("get-tuple-element", "t#0", "f32[2]{0}"),
    ]
    assert root.operands[1].operands[0].tuple_index == 1
    assert len(module.entry.instructions) == 5
    assert module.instruction_count == 2


def test_elements_of_what_comes_later() -> None:
    module = entry("ROOT x = f32[2]{0} negate(t#0)", "t = (f32[2]{0}) parameter(0)")
    assert str(module.entry.root.operands[0].shape) == "f32[2]{0}"


def test_operands_with_their_shapes() -> None:
    line = "x = f32[8,16]{1,0} f(f32[8,16]{1,0} %p, /*index=1*/f32[8,16]{1,0} q, (f32[], s32[]) %t)"
    root = one(line, parameters=PQ + "\n  t = (f32[], s32[]) parameter(2)")
    assert [o.name for o in root.operands] == ["p", "q", "t"]


def test_operands_spelt_out_in_place() -> None:
    root = one("x = f32[8,16] add(add(p, q), f32[8,16] broadcast(f32[] constant(2)))", parameters=PQ)
    inner, broadcast = root.operands
    assert [o.name for o in inner.operands] == ["p", "q"]
    assert str(inner.shape) == "f32[8,16]{1,0}"
    assert list(broadcast.operands[0].proto.literal.f32s) == [2]


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("add(p, q)", "f32[8,16]{1,0}"),
        ("compare(p, q), direction=LT", "pred[8,16]{1,0}"),
        ("tuple(p, q)", "(f32[8,16]{1,0}, f32[8,16]{1,0})"),
        ("transpose(p), dimensions={1,0}", "f32[16,8]"),
        ("concatenate(p, q), dimensions={1}", "f32[8,32]"),
        ("pad(p, q), padding=1_2x0_0_1", "f32[11,31]"),
        ("dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "f32[8,8]"),
        ("after-all()", "token[]"),
        ("call(p, q), to_apply=add", "f32[]"),
    ],
)
def test_shapes_that_the_text_leaves_out(line: str, shape: str) -> None:
    assert str(one(f"x = {line}", parameters=PQ, before=ADD).shape) == shape


@pytest.mark.parametrize(
    ("text", "field", "values"),
    [
        ("s32[] constant(-7)", "s32s", [-7]),
        ("u64[] constant(18446744073709551615)", "u64s", [2**64 - 1]),
        ("pred[2]{0} constant({true, 0})", "preds", [True, False]),
        ("f32[2]{0} constant({1.5, -inf})", "f32s", [1.5, -float("inf")]),
        ("f64[] constant(1e-3)", "f64s", [0.001]),
        ("s32[2,3]{1,0} constant({ { 1, 2, 3 }, /*i1=1*/{ 4, 5, 6 } })", "s32s", [1, 2, 3, 4, 5, 6]),
        ("s32[2,3]{0,1} constant({{1,2,3},{4,5,6}})", "s32s", [1, 4, 2, 5, 3, 6]),
        ("c64[] constant((1, -2.5))", "c64s", [1, -2.5]),
        ("s8[3]{0} constant({-1, 0, 1})", "s8s", b"\xff\x00\x01"),
        ("u16[1]{0} constant({258})", "u16s", b"\x02\x01"),
        ("bf16[2]{0} constant({1, -2})", "bf16s", b"\x80\x3f\x00\xc0"),
        ("f16[] constant(1)", "f16s", struct.pack("<e", 1)),
    ],
)
def test_constants(text: str, field: str, values: object) -> None:
    found = getattr(one(f"c = {text}").proto.literal, field)
    assert (found if isinstance(values, bytes) else list(found)) == values


def test_a_tuple_constant() -> None:
    literal = one("c = (f32[], s32[2]{0}) constant((1, {3, 4}))").proto.literal
    assert [list(literal.tuple_literals[0].f32s), list(literal.tuple_literals[1].s32s)] == [[1], [3, 4]]


@pytest.mark.parametrize(
    "text", ["f32[1000]{0} constant({...})", "f32[8] constant(0)", "f8e4m3fn[1] constant({1})"]
)
def test_elements_that_are_left_out_or_not_kept(text: str) -> None:
    assert not one(f"c = {text}").proto.HasField("literal")


def test_rounding_to_bf16_is_to_nearest_even() -> None:
    found = one("c = bf16[3]{0} constant({1.00390625, 1.01171875, nan})").proto.literal.bf16s
    assert struct.unpack("<3H", found)[:2] == (0x3F80, 0x3F82)
    assert struct.unpack("<3H", found)[2] & 0x7FFF > 0x7F80
