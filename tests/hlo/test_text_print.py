"""A module printed as text reads back as the same module: every declared field but ids, which text has not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hlo_builder import HloBuilder, group_iota, group_lists, group_mesh, pairs, shape_proto
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.errors import UserError
from hloscope.hlo import HloFile, Instruction, Module, protos, read_hlo
from hloscope.hlo.text import parse_text
from hloscope.hlo.text_print import print_text

# Told by name or by meaning instead; of a literal's shape text has only what its constant's has.
ELSEWHERE = {
    "id", "operand_ids", "called_computation_ids", "control_predecessor_ids", "replica_groups",
    "collective_device_list", "literal",
}  # fmt: skip


def again(module: Module) -> Module:
    return Module(parse_text("".join(print_text(module)).encode(), "printed"))


def plain(message: Message) -> str:
    """A message's declared fields."""
    copy = type(message).FromString(message.SerializeToString())
    copy.DiscardUnknownFields()
    return str(copy)


def complete(shape: protos.Shape) -> None:
    """Say what hand-made shapes leave out, and a reader of text says."""
    for part in shape.tuple_shapes:
        complete(part)
    if shape.element_type not in (13, 34):
        shape.layout.tail_padding_alignment_in_elements = shape.layout.tail_padding_alignment_in_elements or 1
        missing = len(shape.dimensions) - len(shape.is_dynamic_dimension)
        shape.is_dynamic_dimension.extend([False] * missing)
    if shape.layout.HasField("physical_shape"):
        complete(shape.layout.physical_shape)


def described(instruction: Instruction) -> dict[str, Any]:
    proto = type(instruction.proto).FromString(instruction.proto.SerializeToString())
    proto.DiscardUnknownFields()
    shape = protos.Shape.FromString(proto.shape)
    for message in (shape, *proto.operand_shapes_with_layout):
        complete(message)
    for count in ("feature_group_count", "batch_group_count"):
        setattr(proto, count, getattr(proto, count) or 1)
    by_id = instruction.computation.by_id
    literal = [(f.name, str(v)) for f, v in proto.literal.ListFields() if f.name != "shape"]
    return {
        **{f.name: str(getattr(proto, f.name)) for f in proto.DESCRIPTOR.fields if f.name not in ELSEWHERE},
        "shape": str(shape),
        "literal": literal,
        "operands": [o.name for o in instruction.operands],
        "called": [c.name for c in instruction.called_computations],
        "predecessors": [by_id[i].name for i in proto.control_predecessor_ids],
        "groups": instruction.replica_groups and instruction.replica_groups.text,
        "frames": instruction.frames,
    }


def assert_same(one: Module, other: Module) -> None:
    assert (one.name, one.entry.name, one.is_scheduled) == (other.name, other.entry.name, other.is_scheduled)
    assert one.num_partitions == other.num_partitions
    others = {c.name: c for c in other.computations}
    assert {c.name for c in one.computations} == set(others)
    for computation in one.computations:
        twin = others[computation.name]
        assert [i.name for i in computation.schedule] == [i.name for i in twin.schedule]
        assert computation.root.name == twin.root.name
        assert (computation.is_fusion, computation.execution_thread) == (
            twin.is_fusion,
            twin.execution_thread,
        )
        by_name = {i.name: i for i in twin.instructions}
        for instruction in computation.instructions:
            assert described(instruction) == described(by_name[instruction.name])
    for field in ("input_output_alias", "buffer_donor", "frontend_attributes", "stack_frame_index"):
        assert plain(getattr(one.proto, field)) == plain(getattr(other.proto, field)), field
    layouts = [m.proto.host_program_shape for m in (one, other)]
    assert [plain(p) for p in layouts[0].parameters] == [plain(p) for p in layouts[1].parameters]
    assert plain(layouts[0].result) == plain(layouts[1].result)


@pytest.mark.parametrize("name", ["oom", "qwen3_30b"])
def test_a_real_module_survives(name: str, shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump(name).module
    assert_same(module, again(module))


def test_a_module_that_came_from_text_survives(dump_file: Callable[[str], Path]) -> None:
    """Its elements of tuples have names that text has not: `%x#0`."""
    proto = dump_file("dense")
    module = read_hlo(proto.with_name(proto.name.replace(".hlo.pb", ".txt"))).module
    assert any("#" in i.name for i in module.instructions)
    assert_same(module, again(module))


def one(opcode: str, shape: str = "f32[8]", **fields: Any) -> Module:
    """A module with one instruction, besides a parameter that it reads."""
    hlo = HloBuilder()
    entry = hlo.entry()
    operand = entry.parameter("f32[8]")
    entry.add(opcode, shape, *(() if opcode == "constant" else (operand,)), **fields)
    return hlo.module()


ARRAYS = st.builds(
    lambda kind, dims, minor, tail: (
        f"{kind}[{','.join(map(str, dims))}]"
        + f"{{{','.join(map(str, minor[: len(dims)]))}{tail if len(dims) > 1 else ''}}}"
    ),
    st.sampled_from(["f32", "bf16", "s8", "pred", "f8e4m3fn", "u4"]),
    st.lists(st.integers(0, 300), max_size=3),
    st.just([0, 1, 2]),
    st.sampled_from(["", ":T(8,128)", ":T(8,128)(2,1)S(1)", ":S(5)"]),
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)


@settings(deadline=None, max_examples=150)
@given(op_name=TEXTS, value=TEXTS, config=st.binary(max_size=30), target=TEXTS)
def test_any_string_survives(op_name: str, value: str, config: bytes, target: str) -> None:
    module = one("custom-call", op_name=op_name, custom_call_target=target, backend_config=config)
    module.entry.root.proto.frontend_attributes.map["kernel_metadata"] = value
    assert_same(module, again(module))


@settings(deadline=None, max_examples=150)
@given(
    shape=st.recursive(
        ARRAYS, lambda s: st.lists(s, max_size=6).map(lambda p: f"({', '.join(p)})"), max_leaves=8
    )
)
def test_any_shape_survives(shape: str) -> None:
    module = one("custom-call", shape, custom_call_target="x")
    assert_same(module, again(module))


def test_layouts_of_sparse_and_dynamic_arrays_survive() -> None:
    module = one("custom-call", "f32[<=8,16]", custom_call_target="x")
    shape = protos.Shape.FromString(module.entry.root.proto.shape)
    layout = shape.layout
    layout.dim_level_types.extend([0, 1])
    layout.dim_unique.extend([True, False])
    layout.dim_ordered.extend([False, True])
    layout.index_primitive_type, layout.element_size_in_bits = 8, 4
    layout.tail_padding_alignment_in_elements, layout.dynamic_shape_metadata_prefix_bytes = 16, 4
    layout.physical_shape.CopyFrom(shape_proto("(f32[8], u32[8])"))
    layout.split_configs.add(dimension=1, split_indices=[4])
    module.entry.root.proto.shape = shape.SerializeToString()
    assert_same(module, again(module))


NUMBERS = {
    "s32": ("s32s", st.integers(-(2**31), 2**31 - 1)),
    "u64": ("u64s", st.integers(0, 2**64 - 1)),
    "pred": ("preds", st.booleans()),
    "f32": ("f32s", st.floats(width=32, allow_nan=False)),
    "f64": ("f64s", st.floats(allow_nan=False)),
}


@settings(deadline=None, max_examples=150)
@given(data=st.data(), kind=st.sampled_from(sorted(NUMBERS)), minor=st.permutations([0, 1, 2]))
def test_any_constant_survives(data: st.DataObject, kind: str, minor: list[int]) -> None:
    field, values = NUMBERS[kind]
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=3))
    count = sizes[0] * sizes[1] * sizes[2]
    shape = f"{kind}[{','.join(map(str, sizes))}]{{{','.join(map(str, minor))}}}"
    literal = protos.Literal(shape=shape_proto(shape))
    getattr(literal, field).extend(data.draw(st.lists(values, min_size=count, max_size=count)))
    module = one("constant", shape, literal=literal)
    assert_same(module, again(module))


@pytest.mark.parametrize("kind", ["bf16", "f16", "s8", "u16"])
def test_packed_constants_survive(kind: str) -> None:
    """Every finite bit pattern of a byte or two, in one constant."""
    width = 1 if kind == "s8" else 2
    patterns = (
        range(256) if width == 1 else [p for p in range(0, 65536, 7) if kind == "u16" or p & 0x7C00 != 0x7C00]
    )
    shape = f"{kind}[{len(patterns)}]"
    literal = protos.Literal(shape=shape_proto(shape))
    setattr(literal, kind + "s", b"".join(p.to_bytes(width, "little") for p in patterns))
    module = one("constant", shape, literal=literal)
    assert_same(module, again(module))


def test_constants_that_text_does_not_keep_are_left_out() -> None:
    module = one("constant", "f8e4m3fn[2]", literal=protos.Literal(shape=shape_proto("f8e4m3fn[2]")))
    assert "constant({...})" in "".join(print_text(module))


MESH = {"fsdp": 4, "expert": 2}


@pytest.mark.parametrize(
    "fields",
    [
        group_lists([0, 1], [2, 3]),
        group_iota(2, [4, 2], [1, 0]),
        group_iota(2, [8]),
        group_mesh(MESH, "expert"),
        group_mesh(MESH, "expert", device_ids=[0, 2, 4, 6, 1, 3, 5, 7]),
        pairs((0, 1), (1, 0)),
    ],
)
def test_devices_survive(fields: dict[str, Any]) -> None:
    module = one("all-gather", channel_id=3, use_global_device_ids=True, **fields)
    assert_same(module, again(module))


SHARDINGS = [
    protos.OpSharding(type=0),
    protos.OpSharding(type=1, tile_assignment_devices=[3]),
    protos.OpSharding(type=4),
    protos.OpSharding(
        type=3, tile_assignment_dimensions=[2, 4], iota_reshape_dims=[4, 2], iota_transpose_perm=[1, 0],
        replicate_on_last_tile_dim=True,
    ),
    protos.OpSharding(type=3, tile_assignment_dimensions=[2, 1], tile_assignment_devices=[1, 0]),
]  # fmt: skip


@pytest.mark.parametrize("sharding", [*SHARDINGS, protos.OpSharding(type=2, tuple_shardings=SHARDINGS)])
def test_shardings_survive(sharding: protos.OpSharding) -> None:
    module = one("custom-call", custom_call_target="Sharding", sharding=sharding)
    assert_same(module, again(module))


def test_named_shardings_survive() -> None:
    mesh = protos.Mesh(axes=[protos.Mesh.Axis(name=n, size=s) for n, s in MESH.items()])
    cut = protos.AxisRef(mesh_axis_index=0)
    cut.sub_axis_info.pre_size, cut.sub_axis_info.size = 2, 2
    dimension = protos.NamedSharding.DimensionSharding
    named = protos.NamedSharding(
        mesh=mesh,
        dim_shardings=[
            dimension(axes=[cut], is_closed=True),
            dimension(),
            dimension(axes=[protos.AxisRef(mesh_axis_index=1)]),
        ],
        replicated_axes=[protos.AxisRef(mesh_axis_index=1)],
        unreduced_axes=[protos.AxisRef(mesh_axis_index=0)],
    )
    module = one(
        "custom-call", custom_call_target="Sharding", sharding=protos.OpSharding(named_sharding=named)
    )
    assert_same(module, again(module))


def test_operations_with_numbers_of_their_own_survive() -> None:
    window = protos.WindowDimension(
        size=3,
        stride=2,
        padding_low=1,
        padding_high=-1,
        window_dilation=2,
        base_dilation=3,
        window_reversal=True,
    )
    labels = protos.ConvolutionDimensionNumbers(
        input_feature_dimension=2, input_spatial_dimensions=[1], kernel_input_feature_dimension=1,
        kernel_output_feature_dimension=2, kernel_spatial_dimensions=[0], output_feature_dimension=2,
        output_spatial_dimensions=[1],
    )  # fmt: skip
    for module in (
        one("convolution", window=protos.Window(dimensions=[window]), convolution_dimension_numbers=labels,
            feature_group_count=4, batch_group_count=1),
        one("pad", padding_config=protos.PaddingConfig(dimensions=[
            protos.PaddingConfig.Dimension(edge_padding_low=-1, edge_padding_high=2, interior_padding=3)])),
        one("slice", slice_dimensions=[protos.SliceDimensions(start=0, limit=8, stride=2)]),
        one("dot", dot_dimension_numbers=protos.DotDimensionNumbers(lhs_contracting_dimensions=[0])),
        one("reduce-precision", exponent_bits=8, mantissa_bits=7),
        one("compare", "pred[8]", comparison_direction="LT", comparison_type="TOTALORDER"),
        one("iota", dimensions=[0]),
        one("gather", gather_dimension_numbers=protos.GatherDimensionNumbers(
            offset_dims=[0], start_index_map=[0], index_vector_dim=1), gather_slice_sizes=[1]),
        one("scatter", scatter_dimension_numbers=protos.ScatterDimensionNumbers(
            update_window_dims=[0], index_vector_dim=1, input_batching_dims=[2]), unique_indices=True),
        one("custom-call", custom_call_target="x", custom_call_has_side_effect=True, constrain_layout=True,
            operand_shapes_with_layout=[shape_proto("f32[8]")],
            output_operand_aliasing=[protos.OutputOperandAliasing(operand_index=0)]),
    ):  # fmt: skip
        assert_same(module, again(module))


def test_what_text_cannot_spell_is_refused() -> None:
    module = one("negate")
    module.entry.root.proto.name = "two words"
    with pytest.raises(UserError, match="cannot spell the name 'two words': export the proto"):
        "".join(print_text(module))
    module = one("negate", "q77[8]")
    with pytest.raises(UserError, match="no name for the element type 99"):
        "".join(print_text(module))


def test_xla_reads_it(shared_dump: Callable[[str], HloFile], tmp_path: Path) -> None:
    """jaxlib's own parser, in a process of its own: it aborts on what it does not like."""
    pytest.importorskip("jaxlib._hlo")
    module = shared_dump("dense").module
    place = tmp_path / "printed.txt"
    place.write_text("".join(print_text(module)), encoding="utf-8")
    script = (
        "import sys\n"
        "from jaxlib._hlo import hlo_module_from_text\n"
        "text = open(sys.argv[1], encoding='utf-8').read()\n"
        "print(len(hlo_module_from_text(text).computations()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(place)],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(module.computations)
