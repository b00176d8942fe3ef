"""What a notebook shows of a report: plain lines, HTML that harms nobody, data frames, the graph."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import pytest

import hloscope as hs
from hloscope.report.baseline import Baseline, StepName, renewed
from hloscope.report.html import cells

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def report(dump_file: Callable[[str], Path]) -> hs.Report:
    return hs.load(dump_file("dense"), topology="v6e:2x4", select=["HS203", "HS301"])


def test_plain_lines(report: hs.Report) -> None:
    assert repr(report) == "Report(jit_train_step, v6e:2x4, total 1.2 GiB, peak 1.1 GiB, 3 findings)"
    assert repr(report.memory).startswith("Memory(total 1.2 GiB, peak 1.1 GiB, temp unknown, arena 944.7 MiB")
    assert repr(report.census) == "Census(298 families, 217 fusions)"
    assert repr(report.collectives) == "Collectives(22 kinds)"
    assert repr(report.findings).splitlines()[0] == "Findings(3)"
    assert repr(report.findings).count("\n") == 3
    assert repr(report.module) == "Module(jit_train_step, 3,673 instructions, scheduled)"
    assert str(report) == report.to_text()


@pytest.mark.parametrize(
    ("part", "inside", "outside"),
    [
        (
            "memory",
            ['id="curve"', '"type":"treemap"', 'id="treemap"', 'id="buffers"'],
            ['id="findings"', "<header"],
        ),
        ("census", ['id="census"'], ['id="curve"', 'id="collectives"', '"type":"treemap"']),
        ("collectives", ['id="collectives"'], ['id="curve"', 'id="census"']),
        ("findings", ['id="findings"', "HS203"], ['id="curve"', 'id="census"', '"type":"treemap"']),
    ],
)
def test_a_part_shows_its_section_of_the_page(
    report: hs.Report, part: str, inside: list[str], outside: list[str]
) -> None:
    html = getattr(report, part)._repr_html_()
    assert html.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in html
    page = html.replace("&quot;", '"').replace("&lt;", "<")
    assert [text for text in inside if text not in page] == []
    assert [text for text in outside if text in page] == []


def test_the_frame_draws_in_a_browser(browser: Browser, report: hs.Report, tmp_path: Path) -> None:
    """As a notebook embeds it: sandboxed, with charts and tables, asking nobody for anything."""
    around = report.findings[0].instructions[0].neighbourhood(2)
    parts = [part._repr_html_() for part in (report.memory, report.census, report.findings, around)]
    file = tmp_path / "cells.html"
    file.write_text("<!DOCTYPE html><title>cells</title>" + "".join(map(str, parts)), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 1100, "height": 2000})
    tab.set_default_timeout(120_000)
    complaints: list[str] = []
    requests: list[str] = []
    tab.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(file.as_uri())
    for frame in tab.query_selector_all("iframe"):
        content = frame.content_frame()
        assert content is not None
        content.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
    memory, census, findings, near = (frame.content_frame() for frame in tab.query_selector_all("iframe"))
    assert memory is not None
    assert census is not None
    assert findings is not None
    assert near is not None
    assert memory.locator("#curve .scatterlayer").count() == 1
    memory.locator("#treemap").scroll_into_view_if_needed()
    memory.locator("#treemap .treemaplayer .slice").first.wait_for()
    near.locator("#graph-0").scroll_into_view_if_needed()
    near.locator("#graph-0 .scatterlayer .textpoint").first.wait_for()
    assert near.locator("#graph-0 .scatterlayer .textpoint").first.text_content() == around.centre.name
    census.locator("#census").scroll_into_view_if_needed()
    assert census.locator("#census tbody tr").count() == 25
    census.fill("input[type=search]", "backward")
    assert all("backward" in row for row in census.locator("#census tbody tr").all_inner_texts())
    assert findings.locator("article.finding").count() == len(report.findings)
    if folder := os.environ.get("SCREENSHOTS"):
        tab.screenshot(path=f"{folder}/cells.png", full_page=True)
    tab.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "blob:", "data:", "about:"))] == []


def test_what_needs_no_charts_brings_none(report: hs.Report) -> None:
    whole, census = report._repr_html_(), report.census._repr_html_()
    assert whole is not None
    assert census is not None
    assert len(census) < 1_000_000 < len(whole) < 4_000_000


def test_without_the_extra_the_plain_line_is_shown(
    report: hs.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "find_spec", lambda name: None if name == "plotly" else find_spec(name))
    assert report._repr_html_() is None
    assert report.memory._repr_html_() is None
    centre = report.findings[0].instructions[0]
    tree = centre.neighbourhood(1)._repr_html_()
    assert "<iframe" not in tree
    assert f"%{centre.name}" in tree


def test_hostile_names_stay_text(hostile: hs.Report) -> None:
    shown = [
        hostile._repr_html_(),
        hostile.findings._repr_html_(),
        hostile.module._repr_html_(),
        hs.diff(hostile, hostile)._repr_html_(),
        next(iter(hostile.module.instructions)).neighbourhood(1)._repr_html_(),
    ]
    for html in shown:
        assert html is not None
        assert "<script>document" not in html
        assert "<img src=x" not in html
        assert "\x1b" not in html


def test_frames_have_the_rows_of_the_json_report(report: hs.Report) -> None:
    told = report.to_dict()
    census = report.census.to_frame()
    assert list(census.columns) == list(told["census"][0])
    assert census["bytes"].sum() == sum(f["bytes"] for f in told["census"] if f["bytes"] is not None)
    assert census["seconds"].isna().sum() == sum(f["seconds"] is None for f in told["census"])
    assert list(report.collectives.to_frame()["bytes"]) == [c["bytes"] for c in told["collectives"]]
    assert list(report.findings.to_frame()["code"]) == [f["code"] for f in told["findings"]]
    memory = told["memory"]
    for what, name in (("buffers", "buffers_at_peak"), ("families", "families_at_peak"), ("live", "live")):
        assert list(report.memory.to_frame(what)["bytes"]) == [row["bytes"] for row in memory[name]]


def test_a_frame_of_nothing_has_its_columns(hostile: hs.Report, report: hs.Report) -> None:
    nothing = hs.load(report.target.hlo_file, select=["HS101"]).findings.to_frame()
    assert len(nothing) == 0
    assert list(nothing.columns) == list(report.findings.to_frame().columns)


def test_find_and_walk(report: hs.Report) -> None:
    module = report.module
    fusions = module.find(opcode="fusion")
    assert len(fusions) == report.census.fusion_count
    shape = fusions[0].shape
    alike = module.find(opcode="fusion", shape=shape.short)
    assert alike == tuple(i for i in fusions if i.shape.short == shape.short)
    assert set(module.find(opcode="fusion", shape=shape)) <= set(alike)
    scoped = module.find(op_name="transpose(jvp")
    assert scoped
    assert all("transpose(jvp" in i.op_name for i in scoped)
    assert module.find(fusions[0].name) is fusions[0]
    assert module.find("%nothing") is None
    around = fusions[0].neighbourhood(2)
    assert set(fusions[0].operands) | set(fusions[0].users) <= set(around.instructions)
    graph = module.graph()
    assert isinstance(graph, nx.DiGraph)
    assert graph.nodes[fusions[0].name]["instruction"] is fusions[0]


def test_a_report_held_against_a_baseline_shows_its_own_findings(report: hs.Report) -> None:
    step = StepName(name="dense", topology="v6e:2x4")
    accepted = renewed(report.findings, Baseline(path="known.toml", steps={}), ["HS203"], step)
    held = report.with_baseline(accepted, ["HS203"], step)
    assert len(held.findings) < len(report.findings)
    assert list(held.findings.to_frame()["code"]) == [f.code for f in held.findings]


def test_the_api_waits_for_nothing() -> None:
    script = "import hloscope as hs, sys; hs.__version__; print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"jax", "numpy", "pandas", "plotly", "IPython", "rich"}.isdisjoint(done.stdout.split())


def test_rows_that_there_are_not(report):
    with pytest.raises(ValueError, match="there are no rows 'x': take buffers, families, temporaries, live"):
        report.memory.to_frame("x")
