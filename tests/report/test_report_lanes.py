"""The schedule as lanes and the neighbours of an instruction: what the charts hold is what the analyses found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from hloscope.hlo import HloFile
from hloscope.hlo.neighbourhood import neighbourhood
from hloscope.report.build import load
from hloscope.report.html.lanes import lanes
from hloscope.report.html.neighbours import neighbours
from hloscope.report.model import Report


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
