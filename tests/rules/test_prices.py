"""What findings say that something costs, on modules small enough to reckon with."""

from __future__ import annotations

from expectations import check

# A product that is made in bf16 and written in f32; only the difference is wasted.
WIDENED_AS_WRITTEN = """
product {
  a = bf16[2048,2048] parameter(0)
  b = bf16[2048,2048] parameter(1)
  d = bf16[2048,2048] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT c = f32[2048,2048] convert(d)
}
x = bf16[2048,2048] parameter(0)
w = bf16[2048,2048] parameter(1)
wide = f32[2048,2048] fusion(x, w), kind=kOutput, calls=product  // expect: HS306
ROOT y = f32[2048,2048] negate(wide)
"""

COPIED = """
x = bf16[2048,2048] parameter(0)
wide = f32[2048,2048] convert(x)  // expect: HS306
ROOT y = f32[2048,2048] negate(wide)
"""

# Eight runs, of which each puts its product into a stack that all of them share.
STACKED = """
product {
  stack = f32[8,512,512] parameter(0)
  a = f32[512,512] parameter(1)
  i = s32[] parameter(2)
  zero = s32[] constant(0)
  d = f32[512,512] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp())/rematted_computation/dot_general"}
  row = f32[1,512,512] bitcast(d)
  ROOT updated = f32[8,512,512] dynamic-update-slice(stack, row, i, zero, zero)
}
body {
  state = (s32[], f32[512,512], f32[8,512,512]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  a = f32[512,512] get-tuple-element(state), index=1
  stack = f32[8,512,512] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  put = f32[8,512,512] fusion(stack, a, i), kind=kOutput, calls=product  // expect: HS504
  ROOT out = (s32[], f32[512,512], f32[8,512,512]) tuple(next, a, put)
}
condition {
  state = (s32[], f32[512,512], f32[8,512,512]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  eight = s32[] constant(8)
  ROOT less = pred[] compare(i, eight), direction=LT
}
a = f32[512,512] parameter(0)
stack = f32[8,512,512] parameter(1)
zero = s32[] constant(0)
start = (s32[], f32[512,512], f32[8,512,512]) tuple(zero, a, stack)
ROOT loop = (s32[], f32[512,512], f32[8,512,512]) while(start), condition=condition, body=body
"""  # noqa: E501 - HLO has one instruction a line

MIB = 1 << 20


def test_what_is_widened_as_it_is_written_wastes_the_difference():
    (finding,) = check(WIDENED_AS_WRITTEN, "HS306")
    # 16 MiB are written and read where 8 would be.
    assert (finding.bytes, finding.saved_bytes) == (32 * MIB, 16 * MIB)
    assert finding.details[0].startswith("takes 16.0 MiB where 8.0 MiB would do: widened as it is written")


def test_a_wide_copy_wastes_all_of_it():
    (finding,) = check(COPIED, "HS306")
    assert (finding.bytes, finding.saved_bytes) == (40 * MIB, 32 * MIB)
    assert finding.details[0] == "takes 16.0 MiB beside its source; read by %y"


def test_one_buffer_is_priced_once():
    assert {f.code for f in check(COPIED, "HS306", "HS502")} == {"HS306"}


def test_of_a_stack_that_is_updated_in_place_its_part_is_saved():
    (finding,) = check(STACKED, "HS504")
    assert finding.facts["bytes_to_save"] == 8 * MIB
    assert finding.details[0].startswith("saving the results would hold 8.0 MiB")
