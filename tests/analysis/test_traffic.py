from __future__ import annotations

import gc
import weakref

import pytest
from hlo_builder import HloBuilder

from hloscope.analysis.traffic import hbm_bytes
from hloscope.errors import UserError

TILED = "{1,0:T(8,128)(2,1)}"
VMEM = "{1,0:T(8,128)(2,1)S(1)}"
BIG = 1024 * 512 * 2  # bytes of bf16[1024,512]
ROW = 8 * 512 * 2  # bytes of bf16[8,512]


def last(hlo: HloBuilder) -> int | None:
    """Bytes of the entry's root."""
    return hbm_bytes(hlo.module().entry.root)


def unfused(opcode: str, shape: str, *operands: str, **fields: object) -> int | None:
    hlo = HloBuilder()
    entry = hlo.entry()
    values = [entry.parameter(o) for o in operands]
    entry.add(opcode, shape, *values, **fields)
    return last(hlo)


def test_operands_and_result_count_with_their_padding():
    assert unfused("negate", f"bf16[1024,512]{TILED}", f"bf16[1024,512]{TILED}") == 2 * BIG
    # 100 columns are padded to 128, 3 rows to 8.
    assert unfused("negate", f"bf16[3,100]{TILED}", f"bf16[3,100]{TILED}") == 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("result", "operand", "expected"),
    [
        (f"bf16[1024,512]{VMEM}", f"bf16[1024,512]{TILED}", BIG),
        (f"bf16[1024,512]{TILED}", f"bf16[1024,512]{VMEM}", BIG),
        (f"bf16[1024,512]{VMEM}", f"bf16[1024,512]{VMEM}", 0),
    ],
)
def test_other_memory_spaces_are_free(result: str, operand: str, expected: int):
    assert unfused("copy", result, operand) == expected


def test_a_copy_between_spaces_counts_its_hbm_side_once():
    started = f"(bf16[1024,512]{VMEM}, bf16[1024,512]{TILED}, u32[])"
    assert unfused("copy-start", started, f"bf16[1024,512]{TILED}") == BIG


def test_a_started_gather_counts_operand_and_result_but_not_its_buffers_twice():
    assert unfused("all-gather-start", "(bf16[8,512], bf16[1024,512])", "bf16[8,512]") == ROW + BIG


@pytest.mark.parametrize(
    "opcode", ["bitcast", "tuple", "copy-done", "async-update", "all-gather-done", "while"]
)
def test_plumbing_is_free(opcode: str):
    assert unfused(opcode, "bf16[1024,512]", "bf16[1024,512]") == 0


def test_reserving_memory_is_free():
    assert unfused("custom-call", "bf16[1024,512]", custom_call_target="AllocateBuffer") == 0


def test_a_kernel_counts_operands_and_results():
    shape = "(bf16[1024,512], bf16[8,512])"
    assert (
        unfused("custom-call", shape, "bf16[1024,512]", custom_call_target="tpu_custom_call") == 2 * BIG + ROW
    )


def test_an_operand_used_twice_counts_once():
    hlo = HloBuilder()
    entry = hlo.entry()
    x = entry.parameter("bf16[1024,512]")
    entry.add("multiply", "bf16[1024,512]", x, x)
    assert last(hlo) == 2 * BIG


def test_slices_gathers_and_updates_count_what_they_touch():
    assert unfused("dynamic-slice", "bf16[8,512]", "bf16[1024,512]", "s32[]") == 2 * ROW + 4
    assert unfused("gather", "bf16[8,512]", "bf16[1024,512]", "s32[8]") == 2 * ROW + 32
    assert (
        unfused("dynamic-update-slice", "bf16[1024,512]", "bf16[1024,512]", "bf16[8,512]", "s32[]")
        == 2 * ROW + 4
    )
    # A scatter reads its updates and what it adds them to, and writes the sum.
    assert unfused("scatter", "bf16[1024,512]", "bf16[1024,512]", "s32[8]", "bf16[8,512]") == 3 * ROW + 32


def test_what_is_touched_off_hbm_is_free():
    near = f"bf16[1024,512]{VMEM}"
    assert unfused("dynamic-slice", "bf16[8,512]", near, "s32[]") == ROW + 4
    assert unfused("dynamic-update-slice", near, near, "bf16[8,512]", "s32[]") == ROW + 4
    # A slice is never more than the whole: here the operand has no padding, and its parts have.
    assert unfused("slice", f"bf16[2,512]{TILED}", "bf16[2,512]") == 2 * 512 * 2 + ROW


def test_an_operand_passed_twice_to_a_fusion_counts_once():
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    # Half of the one and all of the other: together no more than all.
    half = body.add("slice", "bf16[512,512]", body.parameter("bf16[1024,512]"))
    total = body.add("reduce", "bf16[512]", body.parameter("bf16[1024,512]"))
    body.add("tuple", "(bf16[512,512], bf16[512])", half, total)
    entry = hlo.entry()
    x = entry.parameter("bf16[1024,512]")
    entry.add("fusion", "(bf16[512,512], bf16[512])", x, x, calls=body, fusion_kind="kLoop")
    assert last(hlo) == BIG + BIG // 2 + 512 * 2


@pytest.mark.parametrize("shape", ["bf16[<=1024,512]", "odd[1024,512]"])
def test_an_unknown_size_is_none(shape: str):
    assert unfused("negate", "bf16[1024,512]", shape) is None
    assert unfused("negate", shape, "bf16[1024,512]") is None


def fused_slice(*, also_whole: bool) -> HloBuilder:
    hlo = HloBuilder()
    # The compiler changes tiles in a nested fusion before it slices.
    retile = hlo.computation("retile", fusion=True)
    retile.add("copy", "bf16[1024,512]", retile.parameter("bf16[1024,512]"))
    body = hlo.computation("body", fusion=True)
    p, at = body.parameter("bf16[1024,512]"), body.parameter("s32[]")
    copied = body.add("fusion", "bf16[1024,512]", p, calls=retile)
    part = body.add("dynamic-slice", "bf16[8,512]", copied, at)
    if also_whole:
        total = body.add("reduce", "bf16[512]", p, at)
        body.add("tuple", "(bf16[8,512], bf16[512])", part, total)
    entry = hlo.entry()
    operands = entry.parameter("bf16[1024,512]"), entry.parameter("s32[]")
    shape = "(bf16[8,512], bf16[512])" if also_whole else "bf16[8,512]"
    entry.add("fusion", shape, *operands, calls=body, fusion_kind="kLoop")
    return hlo


def test_a_fused_slice_reads_the_slice():
    assert last(fused_slice(also_whole=False)) == 2 * ROW + 4


def test_a_value_that_is_sliced_and_read_whole_is_read_once():
    assert last(fused_slice(also_whole=True)) == BIG + 4 + ROW + 512 * 2


def test_a_fused_concatenation_reads_each_part_once():
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    parts = [body.parameter("bf16[512,512]") for _ in range(2)]
    whole = body.add("concatenate", "bf16[1024,512]", *parts)
    body.add("slice", "bf16[512,512]", whole)
    entry = hlo.entry()
    entry.add(
        "fusion",
        "bf16[512,512]",
        *(entry.parameter("bf16[512,512]") for _ in range(2)),
        calls=body,
        fusion_kind="kLoop",
    )
    # Half of the result is needed: which half is not followed, so both parts count.
    assert last(hlo) == 3 * BIG // 2


def fused_update(base: str, *, nested: bool = False) -> HloBuilder:
    """A fusion whose result is an update of 8 rows in `base`: "parameter" or "broadcast"."""
    hlo = HloBuilder()
    inner = hlo.computation("inner", fusion=True)
    buffer, rows, at = (inner.parameter(s) for s in ("bf16[1024,512]", "bf16[8,512]", "s32[]"))
    inner.add("dynamic-update-slice", "bf16[1024,512]", buffer, rows, at)
    body = hlo.computation("body", fusion=True)
    first = body.parameter("bf16[1024,512]" if base == "parameter" else "bf16[]")
    rows, at = body.parameter("bf16[8,512]"), body.parameter("s32[]")
    target = first if base == "parameter" else body.add("broadcast", "bf16[1024,512]", first)
    if nested:
        body.add("fusion", "bf16[1024,512]", target, rows, at, calls=inner)
    else:
        body.add("dynamic-update-slice", "bf16[1024,512]", target, rows, at)
    entry = hlo.entry()
    shapes = ("bf16[1024,512]" if base == "parameter" else "bf16[]", "bf16[8,512]", "s32[]")
    entry.add("fusion", "bf16[1024,512]", *map(entry.parameter, shapes), calls=body, fusion_kind="kLoop")
    return hlo


@pytest.mark.parametrize("nested", [False, True])
def test_an_update_in_place_counts_the_update_not_the_buffer(nested: bool):
    assert last(fused_update("parameter", nested=nested)) == 2 * ROW + 4


@pytest.mark.parametrize("nested", [False, True])
def test_an_update_of_a_new_buffer_writes_all_of_it(nested: bool):
    assert last(fused_update("broadcast", nested=nested)) == 2 + ROW + 4 + BIG


def test_a_nested_body_that_calls_itself_over_and_over_ends():
    # Each fusion calls the one before twice: 2^60 paths for anything that follows them all.
    hlo = HloBuilder()
    body = hlo.computation("body0", fusion=True)
    body.add("slice", "bf16[8,512]", body.parameter("bf16[8,512]"))
    for i in range(1, 60):
        outer = hlo.computation(f"body{i}", fusion=True)
        p = outer.parameter("bf16[8,512]")
        twice = [outer.add("fusion", "bf16[8,512]", p, calls=body) for _ in range(2)]
        outer.add("add", "bf16[8,512]", *twice)
        body = outer
    entry = hlo.entry()
    entry.add("fusion", "bf16[8,512]", entry.parameter("bf16[8,512]"), calls=body)
    assert last(hlo) == 2 * ROW


def test_what_is_remembered_lives_no_longer_than_its_module():
    module = fused_update("parameter").module()
    hbm_bytes(module.entry.root)
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None


def test_a_damaged_instruction_is_refused():
    with pytest.raises(UserError, match="lacks an operand: the file is damaged"):
        unfused("slice", "bf16[8,512]")
    with pytest.raises(UserError, match="does not fit its dimensions: the file is damaged"):
        unfused("negate", "bf16[8,512]{0,0:T(8,128)}", "bf16[8,512]")
