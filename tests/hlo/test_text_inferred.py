"""Shapes that hand-written text leaves out, as XLA works them out from the operands."""

from __future__ import annotations

import pytest

from tests.hlo.text_cases import ADD, entry, one

BRANCHES = """
negative {
  y = f32[4] parameter(0)
  ROOT n = f32[4] negate(y)
}
same {
  z = f32[4] parameter(0)
  ROOT c = f32[4] copy(z)
}
"""


def test_a_conditional_gives_what_its_branches_give() -> None:
    made = entry(
        "p = pred[] parameter(0)",
        "a = f32[4] parameter(1)",
        "ROOT x = conditional(p, a, a), true_computation=negative, false_computation=same",
        before=BRANCHES,
    )
    assert made.entry.root.shape.short == "f32[4]"


@pytest.mark.parametrize(
    ("window", "shape"),
    [
        ("size=3x1", "f32[6,16]"),
        ("size=3x4 stride=2x4", "f32[3,4]"),
        ("size=3x1 pad=2_1x0_0", "f32[9,16]"),
        ("size=3x1 rhs_dilate=2x1", "f32[4,16]"),
        ("size=2x1 lhs_dilate=3x1", "f32[21,16]"),
        ("size=9x1", "f32[0,16]"),
    ],
)
def test_a_window_moves_over_each_dimension(window: str, shape: str) -> None:
    lines = ("p = f32[8,16] parameter(0)", "i = f32[] constant(0)")
    line = f"ROOT r = reduce-window(p, i), window={{{window}}}, to_apply=add"
    assert entry(*lines, line, before=ADD).entry.root.shape.short == shape


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ("window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_01io->bf01", "f32[2,32,9,8]"),
        ("window={size=3x3 stride=2x1}, dim_labels=bf01_01io->01bf", "f32[4,6,2,32]"),
        (
            "window={size=3x3}, dim_labels=bf01_01io->b01f, batch_group_count=2, feature_group_count=1",
            "f32[1,7,6,32]",
        ),
    ],
)
def test_a_convolution_by_its_labels(attributes: str, shape: str) -> None:
    lines = ("p = f32[2,17,9,8] parameter(0)", "k = f32[3,3,17,32] parameter(1)")
    made = entry(*lines, f"ROOT c = convolution(p, k), {attributes}")
    assert made.entry.root.shape.short == shape


def test_spaces_within_a_slice_and_minus_one_of_an_unsigned_type() -> None:
    parts = one("x = f32[1] slice(p), slice={[0 : 1], [2 : 8 : 3]}", parameters="p = f32[4,9] parameter(0)")
    assert [(d.start, d.limit, d.stride) for d in parts.proto.slice_dimensions] == [(0, 1, 1), (2, 8, 3)]
    assert list(one("c = u64[] constant(-1)").proto.literal.u64s) == [2**64 - 1]
