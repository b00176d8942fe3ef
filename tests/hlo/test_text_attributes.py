"""The attributes of HLO text, each on an instruction of its own."""

from __future__ import annotations

import pytest
from text_cases import ADD, PQ, P, entry, one, read

from hloscope.hlo import protos


def test_metadata() -> None:
    root = one(
        r'x = f32[] parameter(0), metadata={op_type="a" op_name="state[\'w\']/\303\244" source_file="f.py" '
        "source_line=3 source_end_line=4 source_column=1 profile_type={1} preserve_layout=true}"
    )
    assert root.op_name == "state['w']/ä"
    assert (root.frames[0].file, root.frames[0].line) == ("f.py", 3)
    assert root.proto.metadata.op_type == "a"


def test_configurations_as_json_and_as_a_string() -> None:
    json_ = one('x = f32[] parameter(0), backend_config={"a":{"b":"}"},"c":[1]}')
    assert json_.backend_config == {"a": {"b": "}"}, "c": [1]}
    assert one(r'x = f32[] parameter(0), backend_config="{\"a\":1}"').backend_config == {"a": 1}
    assert one(r'x = f32[] parameter(0), backend_config="\001\377\n"').proto.backend_config == b"\x01\xff\n"
    assert one('x = f32[] parameter(0), backend_config={n = 2 : i64, s = "\\7F"}').backend_config == {}


def test_frontend_attributes_with_raw_newlines() -> None:
    root = one(
        'x = f32[] parameter(0), frontend_attributes={kernel_metadata={\n"a": "}"\n},b="c,\n d",e=f}, sharding={manual}'
    )
    assert root.frontend_attributes == {"kernel_metadata": '{\n"a": "}"\n}', "b": "c,\n d", "e": "f"}
    assert root.proto.sharding.type == 4


@pytest.mark.parametrize(
    ("text", "spelled", "groups"),
    [
        ("{{0,1},{2,3}}", "{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[2,2]<=[4]", "[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0)", "[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("mesh['x'=2,'y'=2] {'x'}", "mesh['x'=2,'y'=2] {'x'}", [[0, 2], [1, 3]]),
        ("mesh['x'=4] {'x':(1)2}", "mesh['x'=4] {'x:(1)2'}", [[0, 2], [1, 3]]),
        ("mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}", "mesh['x'=2,'y'=2] {'y'}", [[3, 2], [1, 0]]),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}", "mesh['x'=2,'y'=2] {'y'}", [[0, 2], [1, 3]]),
    ],
)
def test_replica_groups(text: str, spelled: str, groups: list[list[int]]) -> None:
    root = one(
        f"x = f32[8,16]{{1,0}} all-reduce(p), channel_id=3, replica_groups={text}, use_global_device_ids=true, "
        "to_apply=add",
        parameters=P,
        before=ADD,
    )
    found = root.replica_groups
    assert found is not None
    assert found.text == spelled
    assert found.groups is not None
    assert found.groups.tolist() == groups
    assert (root.proto.channel_id, root.proto.use_global_device_ids) == (3, True)


def test_no_replica_groups_are_all_devices() -> None:
    root = one("x = f32[8,16] all-reduce(p), replica_groups={}, to_apply=add", parameters=P, before=ADD)
    assert root.replica_groups is None


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{replicated}", {}),
        ("{maximal device=3}", {"type": 1, "tile_assignment_devices": [3]}),
        (
            "{devices=[2,1]0,1}",
            {"type": 3, "tile_assignment_dimensions": [2, 1], "tile_assignment_devices": [0, 1]},
        ),
        (
            "{devices=[2,1,2]<=[4] last_tile_dim_replicate}",
            {
                "type": 3,
                "tile_assignment_dimensions": [2, 1, 2],
                "replicate_on_last_tile_dim": True,
                "iota_reshape_dims": [4],
                "iota_transpose_perm": [0],
            },
        ),
        (
            "{devices=[1,2]<=[2] last_tile_dims={manual}}",
            {
                "type": 3,
                "tile_assignment_dimensions": [1, 2],
                "last_tile_dims": [4],
                "iota_reshape_dims": [2],
                "iota_transpose_perm": [0],
            },
        ),
    ],
)
def test_shardings(text: str, fields: dict[str, object]) -> None:
    assert one(f"x = f32[4,4] parameter(0), sharding={text}").proto.sharding == protos.OpSharding(**fields)


def test_tuple_and_named_shardings() -> None:
    tuple_ = one("x = (f32[4], f32[4]) parameter(0), sharding={{replicated}, /*index=1*/{maximal device=0}}")
    assert [s.type for s in tuple_.proto.sharding.tuple_shardings] == [0, 1]
    named = one(
        "x = f32[4,4] parameter(0), sharding={mesh['x'=2,'y'=4], [{'x', ?}, {}], replicated={'y'}}"
    ).proto.sharding.named_sharding
    assert [a.name for a in named.mesh.axes] == ["x", "y"]
    assert [d.is_closed for d in named.dim_shardings] == [False, True]
    assert named.dim_shardings[0].axes[0].mesh_axis_index == 0
    assert named.replicated_axes[0].mesh_axis_index == 1


def test_loops_and_branches_call_in_the_order_of_the_message() -> None:
    before = (
        "c {\n s = s32[] parameter(0)\n ROOT k = pred[] constant(true)\n}\nb {\n t = s32[] parameter(0)\n}\n"
    )
    loop = one(
        'w = s32[] while(p), condition=c, body=b, backend_config={"known_trip_count":{"n":"5"}}',
        parameters="p = s32[] parameter(0)",
        before=before,
    )
    assert [c.name for c in loop.called_computations] == ["b", "c"]
    assert loop.module.trip_counts[loop.id] == 5
    branches = "conditional(p, p, p), branch_computations={b, %c}"
    switch = one(f"w = s32[] {branches}", parameters="p = s32[] parameter(0)", before=before)
    assert [c.name for c in switch.called_computations] == ["b", "c"]
    either = one(
        "w = s32[] conditional(p, p, p), false_computation=c, true_computation=b",
        parameters="p = s32[] parameter(0)",
        before=before,
    )
    assert [c.name for c in either.called_computations] == ["b", "c"]


def test_a_trip_count_is_derived_from_text_alone() -> None:
    module = read(
        """HloModule m
body {
  s = (s32[], f32[4]) parameter(0)
  one = s32[] constant(1)
  next = s32[] add(s#0, one)
  ROOT out = (s32[], f32[4]) tuple(next, s#1)
}
cond {
  s = (s32[], f32[4]) parameter(0)
  n = s32[] constant(12)
  ROOT less = pred[] compare(s#0, n), direction=LT
}
ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  init = (s32[], f32[4]) tuple(zero, x)
  ROOT w = (s32[], f32[4]) while(init), condition=cond, body=body
}"""
    )
    assert list(module.trip_counts.values()) == [12]


def test_a_convolution() -> None:
    proto = one(
        "x = f32[8] convolution(p, q), window={size=3x2 stride=2x1 pad=1_0x-1_2 lhs_dilate=1x2 rhs_dilate=3x1 "
        "rhs_reversal=0x1}, dim_labels=b01f_01io->fb01, feature_group_count=4, operand_precision={highest,default}",
        parameters=PQ,
    ).proto
    first, second = proto.window.dimensions
    assert (first.size, first.stride, first.padding_low, first.padding_high) == (3, 2, 1, 0)
    assert (second.padding_low, second.base_dilation, first.window_dilation) == (-1, 2, 3)
    assert (first.window_reversal, second.window_reversal) == (False, True)
    numbers = proto.convolution_dimension_numbers
    assert (numbers.input_batch_dimension, numbers.input_feature_dimension) == (0, 3)
    assert list(numbers.kernel_spatial_dimensions) == [0, 1]
    assert list(numbers.output_spatial_dimensions) == [2, 3]
    assert (proto.feature_group_count, proto.batch_group_count) == (4, 1)


def test_dots() -> None:
    line = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    dot = one(f"x = f32[8] dot(p, q), {line}", parameters=PQ).proto.dot_dimension_numbers
    assert (list(dot.lhs_batch_dimensions), list(dot.rhs_contracting_dimensions)) == ([0], [1])
    ragged = one(
        "x = f32[8] ragged-dot(p, q, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        parameters=PQ,
    ).proto.ragged_dot_dimension_numbers
    assert list(ragged.dot_dimension_numbers.lhs_contracting_dimensions) == [1]
    assert (list(ragged.lhs_ragged_dimensions), list(ragged.rhs_group_dimensions)) == ([0], [0])


def test_gathers_and_scatters() -> None:
    gather = one(
        "x = f32[8] gather(p, q), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "operand_batching_dims={}, index_vector_dim=1, slice_sizes={1,16}, indices_are_sorted=true",
        parameters=PQ,
    ).proto
    assert (list(gather.gather_dimension_numbers.offset_dims), list(gather.gather_slice_sizes)) == (
        [1],
        [1, 16],
    )
    assert (gather.gather_dimension_numbers.index_vector_dim, gather.indices_are_sorted) == (1, True)
    scatter = one(
        "x = f32[8] scatter(p, q, q), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, input_batching_dims={}, index_vector_dim=1, unique_indices=true, "
        "to_apply=add",
        parameters=PQ,
        before=ADD,
    )
    assert list(scatter.proto.scatter_dimension_numbers.update_window_dims) == [1]
    assert (scatter.proto.scatter_dimension_numbers.index_vector_dim, scatter.proto.unique_indices) == (
        1,
        True,
    )
    assert [c.name for c in scatter.called_computations] == ["add"]


def test_slices_paddings_and_permutations() -> None:
    slice_ = one("x = f32[4] slice(p), slice={[0:8:2], [3:7]}", parameters=P).proto.slice_dimensions
    assert [(s.start, s.limit, s.stride) for s in slice_] == [(0, 8, 2), (3, 7, 1)]
    pad = one("x = f32[4] pad(p, q), padding=0_8x-1_2_3", parameters=PQ).proto.padding_config.dimensions
    assert [(d.edge_padding_low, d.edge_padding_high, d.interior_padding) for d in pad] == [
        (0, 8, 0),
        (-1, 2, 3),
    ]
    moved = one("x = f32[4] collective-permute(p), source_target_pairs={{0,1},{1,0}}", parameters=P)
    assert moved.source_target_pairs == ((0, 1), (1, 0))


def test_a_custom_call() -> None:
    root = one(
        'x = (f32[8,16]{1,0}) custom-call(p), custom_call_target="my \\"kernel\\"", called_computations={%add}, '
        "operand_layout_constraints={f32[8,16]{1,0}, /*index=1*/f32[]}, custom_call_has_side_effect=true, "
        "output_to_operand_aliasing={{0}: (0, {}), {}: (1, {0,1})}, schedule=SCHEDULE_LATEST, "
        "api_version=API_VERSION_TYPED_FFI",
        parameters=P,
        before=ADD,
    )
    assert root.custom_call_target == 'my "kernel"'
    assert root.proto.custom_call_has_side_effect
    assert root.proto.constrain_layout
    assert len(root.proto.operand_shapes_with_layout) == 2
    alias = root.proto.output_operand_aliasing
    assert (list(alias[0].output_shape_index), list(alias[1].operand_shape_index)) == ([0], [0, 1])


def test_small_attributes() -> None:
    assert one("x = f32[4] iota(), iota_dimension=1").dimensions == (1,)
    assert one("x = f32[4] reshape(p), inferred_dimension=1", parameters=P).dimensions == (1,)
    rounded = one("x = f32[4] reduce-precision(p), exponent_bits=8, mantissa_bits=7", parameters=P).proto
    assert (rounded.exponent_bits, rounded.mantissa_bits) == (8, 7)
    compared = one("x = pred[4] compare(p, q), direction=GE, type=TOTALORDER", parameters=PQ).proto
    assert (compared.comparison_direction, compared.comparison_type) == ("GE", "TOTALORDER")
    moved = one("x = f32[4] dynamic-slice(p, q), dynamic_slice_sizes={1,16}", parameters=PQ).proto
    assert list(moved.dynamic_slice_sizes) == [1, 16]
    sent = one("x = (f32[4], u32[], token[]) send(p, q), channel_id=1, is_host_transfer=true", parameters=PQ)
    assert sent.proto.is_host_transfer
    picked = one(
        "x = f32[4] select-and-scatter(p, q, p), scatter=add, select=ge",
        parameters=PQ,
        before=ADD + ADD.replace("add {", "ge {"),
    )
    assert [c.name for c in picked.called_computations] == ["ge", "add"]


@pytest.mark.parametrize(
    "text",
    [
        "topk(p), k=2, largest=true", "fft(p), fft_type=RFFT, fft_length={8}", "rng(p, q), distribution=rng_uniform",
        "rng-bit-generator(p), algorithm=rng_default", "infeed(p), infeed_config=\"a, b\"",
        "outfeed(p), outfeed_shape=(f32[8,16]{1,0}, f32[])", "exponential(p), result_accuracy={mode=highest}",
        "domain(p), domain={kind=\"sharding\", entry={maximal device=0}, exit={maximal device=1}}",
        "batch-norm-training(p, q, q), epsilon=0.001, feature_index=3",
        "parameter(2), parameter_replication={true,false}, origin={{\"a\" {0}}, {}}",
        "custom-call(p), custom_call_target=\"x\", literal=(s32[1]{0} {1}, f32[] 2)",
        "all-to-all(p), some_attribute_of_tomorrow={a=[{1,2}<=3] \"}\"}, dimensions={0}",
    ],
)  # fmt: skip
def test_attributes_without_a_field_are_left_out(text: str) -> None:
    assert one(f"x = f32[8,16] {text}", parameters=PQ).name == "x"


def test_control_predecessors() -> None:
    module = entry(P, "a = f32[] constant(1)", "x = f32[8,16] negate(p), control-predecessors={%a, p}")
    by_id = module.entry.by_id
    assert [by_id[i].name for i in module.entry.root.proto.control_predecessor_ids] == ["a", "p"]
