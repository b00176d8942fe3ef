"""Reading listings of machine code: loops and trips, slots, transfers; and what a listing in another form makes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hlo_builder import HloBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.analysis.kernel_time import active_steps, bundles_of, fusion_time, grid_loop, kernel_time
from hloscope.analysis.machine_code import MachineCode, Stretch, read_machine_code
from hloscope.devices import chips
from hloscope.hlo import Instruction

LISTING = Path(__file__).parents[1] / "data" / "listings" / "glu_rows_bwd_v6e.json.gz"
REAL: dict[str, str] = json.loads(gzip.decompress(LISTING.read_bytes()))

SMALL = """\
= control target key start
LB: loop body
     0   :  { %s0 = sld }
   0x1 LB: > { %3 = dma.hbm_to_vmem [thread:$0] (%p1), /*hbm=*/%s4, /*size_in_granules=*/64, /*vmem=*/%s5 }
   0x2   :  {}
   0x3 LB: >> { %v1 = vld  ;;  %p2 = scmp.ge.s32.totalorder %s9, 8 /* loop exit test */ }
   0x4   : >> { %v2 = vst }
   0x5   :  {} /* End region 1 */
   0x6 LB: >> { %p3 = scmp.ge.s32.totalorder %s9, %s8 }
   0x7   : > { %4 = dma.vmem_to_hbm [thread:$0]  /*vmem=*/%s6, /*size_in_granules=*/32, /*hbm=*/%s7 }
   0x8 PF:  { %s3 = sst }
"""
TABLE = """\
== CAPACTIY:
VALU, VLOAD:FILL, VSTORE:SPILL
    4     3     2
== UTILIZATION:
0 0 0
0 0 0
0 0 0
3 1 0
4 0 2
0 0 0
1 0 0
0 0 0
0 0 0
"""


def read(bundles: str, table: str | None) -> MachineCode:
    code = read_machine_code(bundles, table)
    assert code is not None
    return code


def test_loops_trips_slots_and_transfers() -> None:
    code = read(SMALL, TABLE)
    (grid,) = code.loops
    known, unknown = grid.inner
    # An empty bundle has no mark of its depth: it belongs to the loop that it stands in.
    assert (code.outside.bundles, grid.bundles, known.bundles, unknown.bundles) == (2, 3, 3, 1)
    assert (grid.trips, known.trips, unknown.trips) == (None, 8, None)
    assert (grid.read_bytes, grid.written_bytes) == (64 * 32, 32 * 32)
    assert known.slots == {"VALU": 7, "VLOAD:FILL": 1, "VSTORE:SPILL": 2}
    assert (code.fills, code.spills, code.capacity["VALU"]) == (1, 2, 4)
    assert code.at_depth(2) == [known, unknown]
    assert bundles_of(grid) == (3 + 8 * 3, 1)
    assert grid_loop(code, [5]) is grid


def test_what_stands_in_the_delay_slots_of_a_loop_is_the_loop_s() -> None:
    late = """\
   0x8   :  { %36 = sbr.rel (!%p33) target = $region156 }
   0x9   :  {}
   0xa   : > { %s1 = smov %s2 }
   0xb   : >> { %s1 = smov %s3 }
   0xc LB: > { %s1 = smov %s2 }
"""
    (grid, after) = read(SMALL + late, None).loops
    # The listing shows a bundle behind the branch back at the depth of the loop; only a mark begins another one.
    assert (grid.bundles, grid.inner[1].bundles, after.bundles) == (4, 2, 1)
    assert read(SMALL + late, None).outside.bundles == 4


@pytest.mark.parametrize(
    "table",
    [
        None,
        "",
        TABLE.replace("== UTILIZATION", "USE"),
        TABLE + "1 1 1\n",
        TABLE.replace("4 0 2", "4 0"),
        TABLE.replace("3 1 0", "3 x 0"),
    ],
)
def test_a_table_of_something_else_leaves_slots_unknown(table: str | None) -> None:
    code = read(SMALL, table)
    assert (code.fills, code.spills, code.capacity) == (None, None, {})
    assert code.loops[0].slots is None
    assert bundles_of(code.loops[0])[0] == 27, "what the listing says itself still stands"


def test_a_size_that_is_not_shown_is_unknown() -> None:
    code = read(SMALL.replace("/*size_in_granules=*/64", "/*size_in_granules=*/%s12"), None)
    assert code.loops[0].read_bytes is None
    assert code.loops[0].written_bytes == 32 * 32


@pytest.mark.parametrize("text", ["", "no listing", "= control target key start\n", "0x1: {"])
def test_another_form_is_none(text: str) -> None:
    assert read_machine_code(text, TABLE) is None


def test_a_real_listing() -> None:
    code = read(REAL["bundles"], REAL["utilization"])
    (grid,) = code.loops
    tiles, tail = grid.inner
    assert (tiles.trips, tail.trips) == (32, None)
    assert (grid.read_bytes, grid.written_bytes) == (3 << 20, 2 << 20)
    assert (code.fills, code.spills) == (0, 0)
    assert bundles_of(grid) == (114 + 32 * 110, 1)
    assert sum(line.lstrip().startswith("0x") for line in REAL["bundles"].splitlines()) + 1 == _all(
        code.outside
    )


def _all(stretch: Stretch) -> int:
    return stretch.bundles + sum(_all(inner) for inner in stretch.inner)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damage_is_unknown_or_less_never_more(data: st.DataObject) -> None:
    """Cut lines, drop characters: never an error, never more bundles than lines, no slots of another program."""
    lines = REAL["bundles"].splitlines()
    start, end = sorted((data.draw(st.integers(0, len(lines))), data.draw(st.integers(0, len(lines)))))
    text = "\n".join(lines[:start] + lines[end:])
    gone = data.draw(
        st.sampled_from([">", "{", "LB", ":", "/* loop exit test */", "size_in_granules", "0x", "="])
    )
    code = read_machine_code(
        text.replace(gone, "") if data.draw(st.booleans()) else text, REAL["utilization"]
    )
    if code is None:
        return
    assert _all(code.outside) <= len(lines)
    if _all(code.outside) != _all(read(REAL["bundles"], None).outside):
        assert code.fills is None
        assert code.capacity == {}


def test_steps_follow_the_valid_share() -> None:
    assert active_steps([1, None, 4], [1, 220, 4], 126_156 / 225_280) == 124 * 4
    assert active_steps([1, None, 4], [1, 220, 4], None) == 880
    assert active_steps([10, 10], [10, 10], 0.5) == 50
    assert active_steps([None], [100], 0.47) == 47


def a_call(*shapes: str, result: str) -> Instruction:
    hlo = HloBuilder()
    entry = hlo.entry()
    operands = [entry.parameter(shape) for shape in shapes]
    config = {"scoped_memory_configs": [{"memory_space": "1", "offset": "0", "size": "9961472"}]}
    entry.add("custom-call", result, *operands, custom_call_target="tpu_custom_call", config=config)
    return hlo.module().entry.root


def block(size: int, are: int, fetched: int | None, *, output: bool = False) -> dict[str, object]:
    return {"bytes": size, "are": are, "fetched": fetched, "output": output}


GRID = {
    "name": "k",
    "grid": [2, None],
    "full_grid": [2, 8],
    # Fetched at each step, once for each of the two rows, and nobody knows when.
    "blocks": [
        block(1 << 20, 16, 16),
        block(1 << 10, 2, 2),
        block(64, 4, None),
        block(1 << 19, 16, 16, output=True),
    ],
}
SHAPES = ("s32[]", "f32[16,1048576]", "f32[2,1024]", "f32[4,64]")


def test_time_is_that_of_transfers_and_bundles_and_at_least_that_of_the_slower() -> None:
    chip = chips()["v6e"]
    call = a_call(*SHAPES, result="f32[16,524288]")
    code = read(SMALL, TABLE)
    found = kernel_time(call, code, GRID, chip, valid_fraction=0.5, vmem_bytes=77)
    assert (found.steps, found.all_steps, found.bundles, found.uncounted_loops) == (8, 16, 27, 1)
    assert found.read_bytes == 8 * (1 << 20) + 1 * (1 << 10) + 8 * 64
    assert found.written_bytes == 8 * (1 << 19)
    assert found.compute_seconds == pytest.approx(8 * 27 / chip.clock_hz)
    speed = chip.hbm_efficiency * chip.hbm_bytes_per_second
    edges = ((1 << 20) + (1 << 10) + 64 + (1 << 19)) / speed
    moved = 8 * (1 << 20) + (1 << 10) + 8 * 64 + 8 * (1 << 19)
    assert found.transfer_seconds == pytest.approx(moved / speed)
    assert found.seconds == pytest.approx(moved / speed + 8 * 27 / chip.clock_hz)
    least = moved / speed + min(edges, 8 * 27 / chip.clock_hz)
    assert found.least_seconds == pytest.approx(least)
    assert (found.bound_by, found.vmem_bytes, found.vmem_limit_bytes) == ("memory", 77, 9_961_472)
    assert found.busy["VALU"] == pytest.approx((0 + 8 * 7) / (4 * 27))


def test_what_lies_in_vmem_crosses_nothing() -> None:
    call = a_call(SHAPES[0], "f32[16,1048576]{1,0:S(1)}", *SHAPES[2:], result="f32[16,524288]")
    found = kernel_time(call, read(SMALL, TABLE), GRID, chips()["v6e"])
    assert found.read_bytes == 2 * (1 << 10) + 16 * 64


def test_bundles_bound_it_where_transfers_are_few() -> None:
    few = GRID | {"blocks": [block(64, 1, 1)]}
    found = kernel_time(a_call("f32[64]", result="f32[64]"), read(SMALL, TABLE), few, chips()["v6e"])
    assert found.bound_by == "issue", "no unit is busy in three quarters of its slots"
    busier = TABLE.replace("3 1 0", "4 1 0").replace("0 0 0\n1 0 0", "4 0 0\n1 0 0")
    found = kernel_time(a_call("f32[64]", result="f32[64]"), read(SMALL, busier), few, chips()["v6e"])
    assert found.bound_by == "vector unit"


def test_the_unknown_stays_unknown() -> None:
    call = a_call(*SHAPES, result="f32[16,524288]")
    for found in (
        kernel_time(call, None, GRID, chips()["v6e"]),
        kernel_time(call, read(SMALL, TABLE), None, chips()["v6e"]),
        kernel_time(call, read(SMALL, TABLE), GRID | {"full_grid": None}, chips()["v6e"]),
        kernel_time(call, read(SMALL, TABLE), GRID, None),
    ):
        assert (found.seconds, found.least_seconds, found.bound_by, found.hidden_share) == (None,) * 4


def test_products_of_matrices_hide_their_transfers() -> None:
    call = a_call("f32[64]", result="f32[64]")
    many = GRID | {"blocks": [block(1 << 10, 16, 16), block(1 << 10, 16, 16, output=True)]}
    apart = kernel_time(call, read(SMALL, TABLE), many, chips()["v6e"])
    found = kernel_time(call, read(SMALL, TABLE.replace("VALU", "MXU")), many, chips()["v6e"])
    assert (apart.seconds or 0) > (apart.least_seconds or 0)
    assert found.busy["MXU"] > 0
    assert found.seconds == found.least_seconds == apart.least_seconds


def test_a_fusion_runs_its_loop_once_for_each_window() -> None:
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    body.add("add", "f32[1024,128]", body.parameter("f32[1024,128]"), body.parameter("f32[1024,128]"))
    entry = hlo.entry()
    operands = [entry.parameter("f32[1024,128]"), entry.parameter("f32[1024,128]")]
    entry.add("fusion", "f32[1024,128]", *operands, calls=body, fusion_kind="kLoop")
    fusion, size = hlo.module().entry.root, 4 * 1024 * 128
    # The cores of a v5p share the windows.
    for chip in (chips()["v6e"], chips()["v5p"]):
        found = fusion_time(fusion, read(SMALL, TABLE), [8, 1], chip)
        assert (found.grid, found.steps, found.bundles) == ((8, 1), 8, 27)
        assert (found.read_bytes, found.written_bytes) == (2 * size, size)
        assert found.compute_seconds == pytest.approx(8 * 27 / chip.cores / chip.clock_hz)
        assert found.seconds == pytest.approx((found.transfer_seconds or 0) + (found.compute_seconds or 0))
    unread = fusion_time(fusion, None, [8, 1], chips()["v6e"])
    assert (unread.read_bytes, unread.bundles, unread.seconds, unread.bound_by) == (
        2 * size,
        None,
        None,
        None,
    )
