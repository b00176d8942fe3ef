"""The HTML report in a real browser: it draws, sorts, filters, and asks nobody for anything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_page import READY, Opened, check_whole, open_page

from hloscope.report.build import load
from hloscope.report.model import Report
from hloscope.units import size

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab


@pytest.fixture(scope="module")
def deepseek(
    browser: Browser, dump_file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    report = load(dump_file("deepseek"), topology="tpu7x:8x8x4")
    opened = open_page(
        browser, report, tmp_path_factory.mktemp("page"), viewport={"width": 1280, "height": 900}
    )
    yield opened
    # Whatever the tests did with it.
    assert opened.complaints == []
    outside = [u for u in opened.requests if not u.startswith(("file:", "blob:", "data:"))]
    assert outside == []
    opened.tab.close()


def texts(tab: Tab, selector: str) -> list[str]:
    return tab.locator(selector).all_inner_texts()


def test_the_figures_are_those_of_the_json(deepseek: Opened) -> None:
    memory = json.loads(json.dumps(deepseek.report.to_dict()))["memory"]
    for name, key in (("total", "total"), ("peak", "peak"), ("arena", "arena"), ("arguments", "argument")):
        assert deepseek.tab.locator(f"#figure-{name}").inner_text() == size(memory[f"{key}_bytes"])
    assert deepseek.tab.locator("#figure-temp").inner_text() == "unknown"


def test_no_chart_offers_to_send_what_it_shows(deepseek: Opened) -> None:
    tab = deepseek.tab
    tab.wait_for_selector("#curve .modebar-btn", state="attached")
    titles = tab.eval_on_selector_all(
        ".modebar-btn", "all => all.map(e => e.dataset.title || e.ariaLabel || '')"
    )
    assert any("Download" in title for title in titles)
    assert not [t for t in titles if re.search("share|cloud|upload|edit", t, re.IGNORECASE)]


def test_what_is_far_from_the_window_waits(deepseek: Opened) -> None:
    """The page is of use with one chart drawn; the others are drawn as they are scrolled to."""
    tab = deepseek.tab
    assert tab.evaluate("performance.getEntriesByName('usable').length") == 1
    assert tab.locator("#curve .scatterlayer path.js-fill").count() == 1
    assert tab.locator("#lanes svg, #roofline svg").count() == 0
    tab.locator("#treemap").scroll_into_view_if_needed()
    tab.locator("#treemap .treemaplayer .slice").nth(10).wait_for()
    tab.locator("#roofline").scroll_into_view_if_needed()
    tab.locator("#roofline .scatterlayer .point").first.wait_for()


def test_what_a_chart_leaves_out_is_told_below_it(deepseek: Opened) -> None:
    tab, points = deepseek.tab, deepseek.report.time.roofline
    tab.locator("#roofline").scroll_into_view_if_needed()
    tab.locator("#roofline .scatterlayer .point").first.wait_for()
    left_out = sum(not p.intensity for p in points)
    assert (tab.locator("#roofline-note").text_content() or "").startswith(f"{left_out} families")
    assert tab.locator("#curve-note").text_content() == ""


def test_what_is_printed_is_drawn_whole(browser: Browser, deepseek: Opened) -> None:
    tab = browser.new_page()
    tab.goto(deepseek.tab.url)
    tab.wait_for_selector(READY, state="attached", timeout=120_000)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("#lanes svg, #roofline svg, #treemap svg").count() >= 3
    tab.close()


def test_the_steps_are_walked_with_the_keyboard(deepseek: Opened) -> None:
    tab = deepseek.tab
    step = tab.locator("#step")
    assert step.input_value() == str(deepseek.report.memory.peak_position)
    step.press("End")
    last = deepseek.report.memory.live[-1].position
    assert tab.locator("#alive h3").inner_text() == f"Largest temporaries alive at step {last:,}"
    marks = tab.evaluate("document.getElementById('curve').layout.shapes.map(s => [s.x0, s.x1])")
    assert [last, last] in marks
    tab.evaluate("keep(null)")


def test_everything_that_answers_a_click_is_reached_by_tab(deepseek: Opened) -> None:
    """By keyboard too, with a mark that shows where one is, and a name that is read out."""
    tab = deepseek.tab
    bare = tab.evaluate(
        """[...document.querySelectorAll('a, button, input, select, summary, tr[data-index]')]
        .filter((e) => e.tabIndex < 0 && !e.closest('[hidden], .modebar, .disabled') && e.getClientRects().length)
        .map((e) => e.outerHTML.slice(0, 90))"""
    )
    assert bare == []
    nameless = tab.evaluate(
        """[...document.querySelectorAll('button, input, select, a')].filter((e) =>
        !(e.textContent.trim() || e.ariaLabel || e.title || e.labels?.length || e.dataset.title))
        .map((e) => e.outerHTML.slice(0, 90))"""
    )
    assert nameless == []
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_hovering_tells_what_is_alive(deepseek: Opened) -> None:
    tab = deepseek.tab
    tab.locator("#curve").scroll_into_view_if_needed()
    box = tab.locator("#curve .nsewdrag").first.bounding_box()
    assert box is not None
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.7 * box["height"])
    peak = f"at step {deepseek.report.memory.peak_position:,}"
    heading = tab.locator("#alive h3", has_not_text=peak)
    told = re.search(r"at step ([\d,]+)", heading.inner_text())
    assert told
    step = int(told[1].replace(",", ""))
    alive = [
        b
        for b in deepseek.report.memory.largest_temporaries
        if b.first is not None and b.last is not None and b.first <= step <= b.last
    ]
    shown = texts(tab, "#alive li")
    assert len(shown) == min(12, len(alive))
    assert shown[0].startswith(size(alive[0].bytes))


def test_a_row_shows_the_life_of_its_buffer(deepseek: Opened) -> None:
    tab, first = deepseek.tab, deepseek.report.memory.buffers_at_peak[0]
    tab.locator("#buffers").scroll_into_view_if_needed()
    tab.locator("#buffers tbody tr").first.press("Enter")
    panel = tab.locator("#life")
    assert panel.is_visible()
    told = dict(zip(texts(tab, "#life dt"), texts(tab, "#life dd"), strict=True))
    assert told["bytes"] == size(first.bytes)
    assert told["lives from step"] == f"{first.first} to {first.last}"
    assert first.instruction is not None
    assert told["made by"].endswith(first.instruction.name)
    # Its life is marked in the curve.
    shapes = tab.evaluate("document.getElementById('curve').layout.shapes.map(s => [s.x0, s.x1])")
    assert [first.first, first.last] in shapes


def in_window(tab: Tab, selector: str) -> float:
    """How far below the window's top an element begins; the test fails if it is not in the window."""
    top, height = tab.evaluate(
        "s => [document.querySelector(s).getBoundingClientRect().top, innerHeight]", selector
    )
    assert -2 <= top < height, f"{selector} is at {top} of {height}"
    return top


def test_the_life_of_a_buffer_is_in_sight_and_leads_back(deepseek: Opened) -> None:
    tab = deepseek.tab
    line = tab.locator("tr[data-index]").nth(3)
    line.scroll_into_view_if_needed()
    line.click()
    tab.wait_for_timeout(1200)
    in_window(tab, "#life h3")
    tab.get_by_role("button", name="back to the table").click()
    tab.wait_for_timeout(300)
    assert tab.evaluate("document.activeElement.dataset.index") == line.get_attribute("data-index")
    line_top = line.bounding_box()
    assert line_top is not None
    assert 0 <= line_top["y"] <= 900


def test_links_of_the_sections_lead_there(deepseek: Opened) -> None:
    tab = deepseek.tab
    for section in ("findings", "memory", "census", "target"):
        tab.locator(f"nav a[href='#{section}']").click()
        tab.wait_for_timeout(1300)
        top = in_window(tab, f"#{section}")
        # The last one may have no room to come up.
        assert top < 120 or section == "target"


def test_a_tile_shows_the_life_of_its_buffer(deepseek: Opened) -> None:
    tab = deepseek.tab
    tab.locator("#treemap").scroll_into_view_if_needed()
    tab.get_by_role("button", name="by source file").click()
    assert tab.locator("#choices [aria-pressed=true]").inner_text() == "by source file"
    tab.evaluate("document.querySelector('#life h3').textContent = ''")
    leaf: int = tab.evaluate(
        """() => { const place = document.getElementById('treemap'), trace = place.data[0];
        const index = trace.customdata.findIndex((c) => c[0] >= 0);
        place.emit('plotly_treemapclick', { points: [{ customdata: trace.customdata[index] }] });
        return trace.customdata[index][0]; }"""
    )
    buffer = deepseek.report.memory.buffers_at_peak[leaf]
    assert buffer.label[:20] in tab.locator("#life h3").inner_text()


def test_lanes_are_drawn_and_chosen(deepseek: Opened) -> None:
    tab = deepseek.tab
    tab.locator("#lanes").scroll_into_view_if_needed()
    tab.locator("#lanes .barlayer .point").nth(100).wait_for(state="attached")
    assert tab.locator("#lanes .barlayer .point").count() > 100
    choices = tab.locator("#lane-choices button")
    assert choices.count() > 2
    whole = "document.getElementById('lanes').layout.xaxis.range[1]"
    first = tab.evaluate(whole)
    choices.nth(1).click()
    assert choices.nth(1).get_attribute("aria-pressed") == "true"
    assert tab.evaluate(whole) != first


def test_a_finding_shows_its_neighbours(deepseek: Opened) -> None:
    tab, finding = deepseek.tab, deepseek.report.findings[0]
    tab.locator("#findings").scroll_into_view_if_needed()
    tab.locator("#finding-0 details.neighbours summary").click()
    tab.wait_for_selector("#graph-0 .scatterlayer .textpoint")
    names = tab.locator("#graph-0 .scatterlayer .textpoint").all_text_contents()
    assert names[0] == finding.instructions[0].name
    assert len(names) > 2


def test_tables_are_sorted_and_filtered(deepseek: Opened) -> None:
    tab, families = deepseek.tab, deepseek.report.census.families
    tab.locator("#census").scroll_into_view_if_needed()
    heading = tab.locator("#census thead th", has_text="runs")
    for _ in range(2):
        heading.click()
    shown = [int(t.replace(",", "")) for t in texts(tab, "#census tbody td:nth-child(5)") if t != "unknown"]
    assert shown in (sorted(shown), sorted(shown, reverse=True))
    most = max(f.executions for f in families if f.executions is not None)
    assert most in shown or min(f.executions or 0 for f in families) in shown
    tab.locator("#census input[type=search]").fill("activation")
    matching = sum(
        any("activation" in text for text in (f.family, f.phase, f.shape, f.kind)) for f in families
    )
    told = re.search(
        r"of ([\d,]+) entries", tab.locator("#census .dt-info", has_text="filtered").inner_text()
    )
    assert told
    assert int(told[1].replace(",", "")) == matching > 0


def test_dark_and_narrow(deepseek: Opened) -> None:
    tab = deepseek.tab
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("#theme").click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.set_viewport_size({"width": 420, "height": 900})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 420


def test_hostile_names_do_nothing(browser: Browser, hostile: Report, tmp_path: Path) -> None:
    opened = open_page(browser, hostile, tmp_path)
    assert opened.tab.title() != "owned"
    assert opened.tab.evaluate("document.querySelectorAll('img').length") == 0
    opened.tab.locator("#buffers").scroll_into_view_if_needed()
    opened.tab.locator("#buffers tbody tr").first.click()
    assert "<script>" in opened.tab.locator("#life").inner_text()
    assert opened.complaints == []
    opened.tab.close()


@pytest.mark.parametrize(
    ("name", "topology"),
    [("dense", "v6e:2x4"), ("oom", "v5e:2x4"), ("moe_jax012", "tpu7x:2x2x1"), ("qwen3_30b", None)],
)
def test_pages_of_other_modules_are_whole(
    name: str, topology: str | None, browser: Browser, dump_file: Callable[[str], Path], tmp_path: Path
) -> None:
    opened = open_page(browser, load(dump_file(name), topology=topology), tmp_path)
    check_whole(opened)
    opened.tab.close()
