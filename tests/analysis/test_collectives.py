from __future__ import annotations

from collections.abc import Callable

import pytest
from hlo_builder import Fields, HloBuilder, group_iota, group_lists, group_mesh, loop, pairs

from hloscope.analysis.collectives import Collective, Collectives, find_collectives
from hloscope.errors import UserError
from hloscope.hlo import HloFile, Module

MESH = {"data": 1, "fsdp": 4, "expert": 2}
ROWS = 64 * 128 * 2  # bytes of bf16[64,128]


def all_reduce(**groups: object) -> HloBuilder:
    hlo = HloBuilder()
    entry = hlo.entry()
    entry.add("all-reduce", "bf16[64,128]", entry.parameter("bf16[64,128]"), **groups)
    return hlo


def only(found: Collectives) -> Collective:
    (collective,) = found.collectives
    return collective


def axes(groups: Fields, **known: object) -> tuple[str, ...] | None:
    return only(find_collectives(all_reduce(**groups).module(), **known)).mesh_axes


FSDP = [(0, 2, 4, 6), (1, 3, 5, 7)]
EXPERT = [(0, 1), (2, 3), (4, 5), (6, 7)]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (group_lists(*FSDP), ("fsdp",)),
        (group_lists(*EXPERT), ("expert",)),
        (group_lists(*reversed(FSDP)), ("fsdp",)),
        (group_lists((6, 4, 2, 0), (3, 1, 5, 7)), ("fsdp",)),
        (group_lists(range(8)), ("fsdp", "expert")),
        (group_iota(2, [4, 2], [1, 0]), ("fsdp",)),
        (group_iota(4, [8]), ("expert",)),
        (group_mesh({"axis_0": 8}, "axis_0"), ("fsdp", "expert")),
        (group_mesh({"axis_0": 4, "axis_1": 2}, "axis_0"), ("fsdp",)),
        (group_mesh({"_axis_0": 4, "_axis_1": 1, "_axis_2": 2}, "_axis_2"), ("expert",)),
        (group_mesh(MESH, "fsdp"), ("fsdp",)),
        (group_mesh(MESH, "expert", "data", "fsdp"), ("fsdp", "expert")),
        (group_mesh(MESH, "data"), ()),
        ({}, ("fsdp", "expert")),  # no groups: every device
        (group_lists(*[(i,) for i in range(8)]), ()),
        (group_lists((0, 3), (1, 2), (4, 7), (5, 6)), None),
        (group_lists((0, 1, 2), (3, 4, 5, 6, 7)), None),
        (group_lists((0, 1), (2, 3)), None),  # half of the devices
        (group_lists((0, 1), (0, 1), (2, 3), (4, 5)), None),
        (group_lists((0, 9), (2, 3), (4, 5), (6, 7)), None),
    ],
)
def test_every_form_of_groups_names_its_mesh_axes(groups: Fields, expected: tuple[str, ...] | None):
    assert axes(groups, mesh=MESH) == expected


def test_without_a_mesh_only_real_names_count():
    assert axes(group_lists(*FSDP)) is None
    assert axes(group_mesh({"axis_0": 8}, "axis_0")) is None
    assert axes(group_mesh(MESH, "fsdp")) == ("fsdp",)


def test_part_of_an_axis_keeps_the_compilers_spelling():
    groups = group_mesh(MESH, "fsdp")
    groups["mesh_axes_replica_group_list"].axes[0].sub_axis_info.pre_size = 1
    groups["mesh_axes_replica_group_list"].axes[0].sub_axis_info.size = 2
    assert axes(groups, mesh=MESH) == ("fsdp:(1)2",)


def test_the_mesh_is_found_where_the_module_names_it():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("bf16[64,128]")
    entry.add("all-reduce", "bf16[64,128]", x, **group_lists(*FSDP))
    entry.add("all-reduce", "f32[4]", entry.parameter("f32[4]"), **group_mesh(MESH, "expert"))
    found = find_collectives(hlo.module())
    assert [c.mesh_axes for c in found.collectives] == [("fsdp",), ("expert",)]
    assert found.mesh == {"fsdp": 4, "expert": 2}


def test_the_mesh_is_found_in_parameter_shardings():
    hlo = all_reduce(**group_lists(*FSDP))
    sharding = hlo.proto.spmd_parameters_shardings.add().tuple_shardings.add()
    sharding.named_sharding.mesh.CopyFrom(group_mesh(MESH)["mesh_axes_replica_group_list"].mesh)
    assert only(find_collectives(hlo.module())).mesh_axes == ("fsdp",)


def test_a_mesh_with_its_own_device_order_is_followed():
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    hlo = all_reduce(**group_lists((0, 1, 2, 3), (4, 5, 6, 7)))
    sharding = hlo.proto.spmd_parameters_shardings.add()
    mesh = group_mesh(MESH, device_ids=order)["mesh_axes_replica_group_list"].mesh
    sharding.named_sharding.mesh.CopyFrom(mesh)
    assert only(find_collectives(hlo.module())).mesh_axes == ("fsdp",)


def test_hardware_ids_are_translated_through_the_device_assignment():
    # Partition 0 runs on device 10, partition 1 on 14; the mesh lists its devices in another order.
    hlo = all_reduce(**group_lists((0, 1, 2, 3), (4, 5, 6, 7)))
    hlo.devices([10, 14, 12, 16, 11, 15, 13, 17])
    ids = [10, 11, 12, 13, 14, 15, 16, 17]
    assert only(find_collectives(hlo.module(), mesh=MESH, mesh_device_ids=ids)).mesh_axes == ("fsdp",)
    assert only(find_collectives(hlo.module(), mesh=MESH)).mesh_axes is None
    others = [20, *ids[1:]]
    assert only(find_collectives(hlo.module(), mesh=MESH, mesh_device_ids=others)).mesh_axes is None


@pytest.mark.parametrize(
    "mesh", [{"fsdp": 2**40}, {"fsdp": 0, "expert": 2}], ids=["larger than any machine", "not the devices"]
)
def test_a_mesh_that_makes_no_sense_names_nothing(mesh: dict[str, int]):
    hlo = all_reduce(**group_lists(*FSDP))
    sharding = hlo.proto.spmd_parameters_shardings.add()
    made = group_mesh(mesh)["mesh_axes_replica_group_list"].mesh
    sharding.named_sharding.mesh.CopyFrom(made)
    assert only(find_collectives(hlo.module())).mesh_axes is None
    sharding.named_sharding.mesh.device_ids.extend([5, 5])
    assert find_collectives(hlo.module()).mesh is None


def test_groups_over_too_few_devices_are_refused():
    hlo = all_reduce(**group_mesh(MESH, "fsdp", device_ids=[0, 1]))
    with pytest.raises(UserError, match="list 2 devices: the module is damaged"):
        find_collectives(hlo.module())


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([(0, 2), (2, 4), (4, 6), (6, 0), (1, 3), (3, 5), (5, 7), (7, 1)], ("fsdp",)),
        ([(i, i ^ 1) for i in range(8)], ("expert",)),
        ([(i, (i + 1) % 8) for i in range(8)], ("fsdp", "expert")),
        ([(0, 9)], None),
    ],
)
def test_a_permutation_moves_along_axes(moves: list[tuple[int, int]], expected: tuple[str, ...] | None):
    hlo = HloBuilder()
    entry = hlo.entry()
    shape = "(bf16[64,128], bf16[64,128], u32[], u32[])"
    start = entry.add("collective-permute-start", shape, entry.parameter("bf16[64,128]"), **pairs(*moves))
    entry.add("collective-permute-done", "bf16[64,128]", start)
    found = only(find_collectives(hlo.module(), mesh=MESH))
    assert (found.opcode, found.shape, found.mesh_axes) == ("collective-permute", "bf16[64,128]", expected)
    assert (found.count, found.bytes, found.asynchronous) == (1, ROWS, True)


def fused(*extra: str, kind: str = "kCustom") -> Module:
    """A fusion of an all-reduce and a dynamic-slice; `extra` opcodes use the all-reduce's result too."""
    hlo = HloBuilder()
    body = hlo.computation("all-reduce-scatter", fusion=True)
    p = body.parameter("bf16[64,128]")
    total = body.add("all-reduce", "bf16[64,128]", p, **group_lists(*FSDP))
    others = [body.add(opcode, "bf16[64,128]", total) for opcode in extra]
    part = body.add("dynamic-slice", "bf16[64,32]", total, body.add("constant", "u32[]"))
    result = "bf16[64,32]"
    if others:
        result = "(bf16[64,32], bf16[64,128])"
        body.add("tuple", result, part, *others)
    entry = hlo.entry()
    entry.add("fusion", result, entry.parameter("bf16[64,128]"), calls=body, fusion_kind=kind)
    return hlo.module()


def test_a_fused_all_reduce_and_slice_is_a_reduce_scatter():
    found = only(find_collectives(fused(), mesh=MESH))
    assert (found.opcode, found.form, found.shape) == ("reduce-scatter", "fusion", "bf16[64,32]")
    assert (found.operand_shape, found.dimension, found.group_size) == ("bf16[64,128]", 1, 4)
    assert (found.mesh_axes, found.bytes, found.count) == (("fsdp",), ROWS, 1)
    assert found.instructions[0].opcode == "fusion"


def test_a_fused_all_reduce_whose_result_is_used_whole_stays_one():
    found = only(find_collectives(fused("negate"), mesh=MESH))
    assert (found.opcode, found.form, found.dimension) == ("all-reduce", "fusion", None)


def test_an_all_reduce_that_is_sliced_later_stays_one():
    hlo = HloBuilder()
    entry = hlo.entry()
    total = entry.add("all-reduce", "bf16[64,128]", entry.parameter("bf16[64,128]"), **group_lists(*FSDP))
    entry.add("dynamic-slice", "bf16[64,32]", total, entry.add("constant", "u32[]"))
    found = only(find_collectives(hlo.module()))
    assert (found.opcode, found.form) == ("all-reduce", "opcode")


def sparsecore(*, bind_late: bool) -> Module:
    """A reduce-scatter within a call within an asynchronous computation, whose caller alone has a name."""
    hlo = HloBuilder()
    called = hlo.computation("called_computation", thread="sparsecore")
    fields = {**group_lists(*FSDP), "config": {"device_type": "DEVICE_TYPE_SPARSECORE"}}
    x = called.parameter("bf16[64,128]")
    called.add("reduce-scatter", "bf16[16,128]", x, dimensions=[0], **fields)
    wrapped = hlo.computation("async_computation", thread="sparsecore")
    wrapped.add("call", "bf16[16,128]", wrapped.parameter("bf16[64,128]"), calls=called)
    entry = hlo.entry()
    grad = entry.add(
        "negate", "bf16[64,128]", entry.parameter("bf16[64,128]"), op_name="jit(step)/transpose(jvp())/neg"
    )
    early = () if bind_late else (grad,)
    start = entry.add(
        "async-start", "((bf16[64,128]), bf16[16,128], u32[])", *early, calls=wrapped,
        async_execution_thread="sparsecore",
    )  # fmt: skip
    if bind_late:
        start = entry.add("async-update", "((bf16[64,128]), bf16[16,128], u32[])", start, grad, calls=wrapped)
    entry.add("async-done", "bf16[16,128]", start, calls=wrapped)
    return hlo.module()


@pytest.mark.parametrize("bind_late", [False, True])
def test_a_collective_on_the_sparsecore_counts_once(bind_late: bool):
    found = only(find_collectives(sparsecore(bind_late=bind_late), mesh=MESH))
    assert (found.opcode, found.dimension, found.mesh_axes) == ("reduce-scatter", 0, ("fsdp",))
    assert (found.count, found.executions, found.bytes) == (1, 1, ROWS)
    assert (found.offload, found.asynchronous, found.phase) == ("sparsecore", True, "backward")


def test_a_synchronous_collective_is_not_asynchronous():
    found = only(find_collectives(all_reduce(**group_lists(*FSDP)).module()))
    assert (found.asynchronous, found.offload, found.group_size) == (False, None, 4)


@pytest.mark.parametrize(("trips", "bytes_"), [(7, 7 * ROWS), (None, None)])
def test_loops_multiply_and_unknown_trips_are_unknown(trips: int | None, bytes_: int | None):
    hlo = HloBuilder()
    body = hlo.computation("body")
    body.add("all-reduce", "bf16[64,128]", body.parameter("bf16[64,128]"), **group_lists(*FSDP))
    fields = loop(hlo, body, "bf16[64,128]", trips=trips)
    entry = hlo.entry()
    entry.add("while", "bf16[64,128]", entry.parameter("bf16[64,128]"), **fields)
    found = only(find_collectives(hlo.module()))
    assert (found.count, found.executions, found.bytes) == (1, trips, bytes_)


def test_a_combined_collective_lists_its_parts():
    hlo = HloBuilder()
    entry = hlo.entry()
    parts = [entry.parameter(s) for s in ("f32[4]", "bf16[64,128]", "bf16[64,128]")]
    entry.add("all-reduce", "(f32[4], bf16[64,128], bf16[64,128])", *parts, **group_lists(*FSDP))
    found = only(find_collectives(hlo.module()))
    assert (found.shape, found.bytes) == ("2 x bf16[64,128], f32[4]", 2 * ROWS + 16)


def lines(found: Collectives) -> list[str]:
    return [
        f"{c.opcode} {c.form} {c.shape} dim {c.dimension} {c.mesh_axes} {c.offload} {c.phase} "
        f"x{c.count} {c.executions}"
        for c in found.collectives
    ]


REAL = {
    "qwen35_397b": [
        "reduce-scatter opcode bf16[128,65536] dim 0 ('fsdp',) sparsecore backward x4 60",
        "reduce-scatter opcode bf16[64,128,1024] dim 1 ('fsdp',) sparsecore backward x8 120",
        "reduce-scatter opcode bf16[2,4096,4096] dim 0 ('expert',) sparsecore forward x4 60",
        "all-gather opcode bf16[1,64,4096,1024] dim 2 ('fsdp',) sparsecore forward x8 120",
    ],
    "deepseek": [
        "reduce-scatter opcode bf16[56,131072] dim 0 ('fsdp',) sparsecore backward x3 174",
        "all-gather opcode bf16[1,64,7168,2048] dim 2 ('fsdp',) sparsecore forward x2 116",
        "all-gather opcode bf16[1,7168,256] dim 1 ('fsdp',) sparsecore recompute x1 58",
        "all-gather opcode bf16[16,4096,7168] dim 0 ('expert',) sparsecore recompute x1 58",
        "reduce-scatter fusion bf16[16,1536] dim 0 ('fsdp', 'expert') None backward x2 61",
        "collective-permute opcode bf16[14,576] dim None ('fsdp',) None backward x2 61",
    ],
    "qwen3_30b": [
        "reduce-scatter fusion bf16[32,512,768] dim 1 ('fsdp',) None backward x2 8",
        "reduce-scatter fusion bf16[32,768,512] dim 2 ('fsdp',) None backward x1 4",
        # A windowed loop of permutations: two a trip, and one behind the loop.
        "collective-permute opcode bf16[128,151936] dim None ('fsdp', 'expert') None backward x5 17",
    ],
    "dense": [
        "all-gather opcode bf16[151936,1024] dim 1 ('fsdp',) None forward x1 1",
        "reduce-scatter fusion bf16[128,8,128] dim 0 ('fsdp',) None backward x1 2",
    ],
    "oom": ["all-reduce opcode bf16[2621440,2048] dim None None None forward x1 1"],
}


@pytest.mark.parametrize("name", REAL)
def test_real_modules(name: str, shared_dump: Callable[[str], HloFile]):
    found = lines(find_collectives(shared_dump(name).module))
    for line in REAL[name]:
        assert line in found


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("deepseek", {"fsdp": 128, "expert": 4}),
        ("qwen3_30b", {"fsdp": 4, "expert": 4}),
        ("dense", {"fsdp": 8}),
    ],
)
def test_every_collective_of_a_real_module_has_axes(
    name: str, mesh: dict, shared_dump: Callable[[str], HloFile]
):
    found = find_collectives(shared_dump(name).module)
    assert found.mesh == mesh
    assert all(c.mesh_axes for c in found.collectives)


def test_invented_axes_of_a_real_module_are_named_by_the_given_mesh(shared_dump: Callable[[str], HloFile]):
    found = find_collectives(shared_dump("oom").module, mesh={"data": 4, "expert": 2})
    assert {c.mesh_axes for c in found.collectives} == {("data",), ("data", "expert")}
