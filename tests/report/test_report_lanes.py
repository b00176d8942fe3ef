"""The schedule as lanes and the neighbours of an instruction: what the charts hold is what the analyses found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hlo_builder import HloBuilder, loop

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.step_time import StepTime
from hloscope.devices import chips
from hloscope.hlo import HloFile
from hloscope.hlo.neighbourhood import neighbourhood
from hloscope.report.build import load
from hloscope.report.html import lanes as html_lanes
from hloscope.report.html.lanes import lanes
from hloscope.report.html.neighbours import neighbours
from hloscope.report.model import Report

WIDE = "f32[65536,1024]"


@pytest.fixture(scope="module")
def deepseek(dump_file: Callable[[str], Path]) -> Report:
    return load(dump_file("deepseek"), topology="tpu7x:8x8x4")


def bars(figure: dict[str, object], lane: str) -> list[tuple[float, float, str]]:
    """Begin, seconds and kind of a lane's blocks in the order of time."""
    data = figure["data"]
    assert isinstance(data, list)
    found = [
        (begin, seconds, trace["name"])
        for trace in data
        for begin, seconds, where in zip(trace["base"], trace["x"], trace["y"], strict=True)
        if where == lane
    ]
    return sorted(found)


def test_the_cores_lane_is_the_whole_run_without_overlap(deepseek: Report) -> None:
    """What runs on its own, and the waits, fill the time of each computation: nothing is drawn twice."""
    drawn, timeline = lanes(deepseek.time), deepseek.time.timeline
    assert timeline is not None
    known = sorted(line.seconds for line in timeline.lines.values())
    assert len(drawn) >= 3
    for figure in drawn.values():
        cores = bars(figure, "cores")
        whole = figure["layout"]["xaxis"]["range"][1]
        assert whole in known
        assert sum(seconds for _, seconds, _ in cores) == pytest.approx(whole, rel=1e-6)
        for (begin, seconds, _), (after, _, _) in pairwise(cores):
            assert begin + seconds <= after + 1e-9 * whole


def test_what_runs_beside_stands_in_the_lane_of_what_it_uses(deepseek: Report) -> None:
    first = next(iter(lanes(deepseek.time).values()))
    names = set(first["layout"]["yaxis"]["categoryarray"])
    assert {"cores", "copies", "links fsdp", "links expert", "sparsecore"} <= names
    # One thing does one piece of work at a time.
    for lane in names:
        blocks = bars(first, lane)
        assert all(a[0] + a[1] <= b[0] + 1e-12 for a, b in pairwise(blocks)), lane
    waits = [seconds for _, seconds, kind in bars(first, "cores") if kind == "the step waits"]
    assert len(waits) > 3


def test_without_times_there_are_no_lanes(dump_file: Callable[[str], Path]) -> None:
    assert lanes(load(dump_file("dense")).time) == {}


def test_neighbours_are_those_of_the_module(shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump("dense").module
    centre = next(i for i in module.entry.schedule if i.opcode == "fusion" and len(i.users) > 1)
    figure = neighbours(centre)
    lines, nodes = figure["data"]
    around = neighbourhood(centre, 2)
    shown = nodes["text"]
    assert shown[0] == centre.name
    assert set(shown) <= {i.name for i in around.instructions}
    assert {u.name for u in (*centre.users, *centre.operands)} <= set(shown)
    place = dict(zip(shown, zip(nodes["x"], nodes["y"], strict=True), strict=True))
    assert len(set(place.values())) == len(shown)  # no two on one spot
    # Data flows to the right.
    assert all(place[o.name][0] < place[centre.name][0] for o in centre.operands)
    assert all(place[u.name][0] > place[centre.name][0] for u in centre.users)
    assert len(lines["x"]) == len(lines["y"]) > 0


def test_blocks_that_are_left_out_are_counted(deepseek: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lanes(deepseek.time)
    assert "blocks" not in "".join(figure["layout"]["meta"]["note"] for figure in whole.values())
    monkeypatch.setattr(html_lanes, "_BLOCKS", 10)
    for title, cut in lanes(deepseek.time).items():
        drawn, all_of_them = (sum(len(t["x"]) for t in f["data"]) for f in (cut, whole[title]))
        assert drawn == 10
        assert cut["layout"]["meta"]["note"] == f"the 10 longest of {all_of_them:,} blocks are drawn"


def endless(module: HloBuilder) -> StepTime:
    """A loop whose trips nobody knows, a copy before it and one in it, and a branch."""
    body = module.computation("body")
    state = body.parameter(f"(s32[], {WIDE})")
    at, wide = (body.add("get-tuple-element", s, state, tuple_index=i) for i, s in enumerate(("s32[]", WIDE)))
    body.add("tuple", f"(s32[], {WIDE})", at, body.add("copy", WIDE, wide, name="inside"))
    slow, fast = module.computation("slow"), module.computation("fast")
    slow.add("copy", WIDE, slow.parameter(WIDE))
    fast.parameter(WIDE)
    repeated = loop(module, body, f"(s32[], {WIDE})", trips=None)
    entry = module.entry()
    x = entry.parameter(WIDE)
    entry.add("copy", WIDE, x, name="outside")
    entry.add("conditional", WIDE, entry.parameter("s32[]"), x, x, calls=[slow, fast])
    entry.add("while", f"(s32[], {WIDE})", entry.parameter(f"(s32[], {WIDE})"), name="forever", **repeated)
    for computation in module.proto.computations:
        ids = [i.id for i in computation.instructions]
        module.proto.schedule.sequences[computation.id].instruction_ids.extend(ids)
    return Analyses(module.module(), chip=chips()["v6e"]).step_time


def test_a_loop_of_unknown_length_is_marked_and_its_body_drawn() -> None:
    time = endless(HloBuilder())
    drawn = lanes(time)
    entry = next(figure for title, figure in drawn.items() if title.startswith("the entry"))
    (marks,) = (trace for trace in entry["data"] if trace["type"] == "scatter")
    assert (marks["x"], marks["customdata"]) == ([time.seconds], ["while forever"])
    note = entry["layout"]["meta"]["note"]
    assert "1 loop of unknown length" in note
    assert "of 1 conditional the fastest branch is drawn" in note
    (body,) = (title for title in drawn if title.endswith("body"))
    assert "runs unknown" in body
    assert [name for trace in drawn[body]["data"] for name, *_ in trace["customdata"]] == ["copy inside"]


def test_neighbours_that_are_left_out_are_counted(shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump("dense").module
    crowded = max(module.entry.schedule, key=lambda i: len(i.users))
    total = len(neighbourhood(crowded, 2).instructions)
    assert total > 24
    assert neighbours(crowded)["layout"]["meta"]["note"] == f"the nearest 24 of {total:,} instructions"
    lonely = next(i for i in module.entry.schedule if len(neighbourhood(i, 2).instructions) <= 24)
    assert neighbours(lonely)["layout"]["meta"]["note"] == ""
