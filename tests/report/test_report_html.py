"""The HTML page as text: what is in it, what is escaped, what it weighs. tests/browser opens it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hloscope.errors import UserError
from hloscope.report.build import load
from hloscope.report.html import page as html_page
from hloscope.report.html.charts import memory_curve, peak_treemaps
from hloscope.report.html.tables import census, collectives, temporaries
from hloscope.report.model import Report


class Page(HTMLParser):
    """What a browser would make of a page: its elements, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._raw = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._raw == "script" else self.text if not self._raw else []).append(data)


@pytest.fixture(scope="module")
def deepseek(dump_file: Callable[[str], Path]) -> Report:
    return load(dump_file("deepseek"), topology="tpu7x:8x8x4")


@pytest.fixture(scope="module")
def page(deepseek: Report) -> str:
    return deepseek.to_html()


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_it_is_small_enough_to_send(page: str) -> None:
    assert len(page.encode()) < 6_000_000


def test_nothing_in_it_leads_outside(page: str) -> None:
    linked = [v for name, v in Page(page).attributes if name in ("src", "href", "action", "srcset")]
    assert linked
    assert all(v is not None and v.startswith("#") for v in linked)
    assert "default-src 'none'" in page


def test_the_overview_answers_with_the_figures_of_the_report(page: str, deepseek: Report) -> None:
    text = " ".join(" ".join(Page(page).text).split())
    assert "Yes, 89 %" in text
    assert "84.6 GiB of 94.7 GiB usable HBM on a device" in text
    assert deepseek.findings[0].title in text
    assert "temp unknown" in text


def test_every_row_of_the_report_is_in_a_table(page: str, deepseek: Report) -> None:
    rows = (
        len(deepseek.memory.buffers_at_peak)
        + len(deepseek.census.families)
        + len(deepseek.collectives.collectives)
    )
    assert Page(page).tags.count("tr") == rows + 3


def test_every_row_has_a_cell_for_each_heading(deepseek: Report) -> None:
    for table in (temporaries(deepseek), census(deepseek), collectives(deepseek)):
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_the_curve_ends_where_the_report_says(deepseek: Report) -> None:
    curve = memory_curve(deepseek.memory)
    assert curve is not None
    (trace,) = curve["data"]
    assert max(trace["y"]) == deepseek.memory.peak_bytes / 2**30  # pyright: ignore[reportOptionalOperand]
    assert len(trace["x"]) == len(deepseek.memory.live)


def test_a_small_curve_is_told_in_a_small_unit(deepseek: Report) -> None:
    small = [replace(point, bytes=point.bytes // 10_000) for point in deepseek.memory.live]
    peak = (deepseek.memory.peak_bytes or 0) // 10_000
    curve = memory_curve(replace(deepseek.memory, live=tuple(small), peak_bytes=peak))
    assert curve is not None
    assert curve["layout"]["yaxis"]["title"]["text"] == "MiB alive on a device"
    assert max(curve["data"][0]["y"]) == peak / 2**20


def test_a_curve_that_is_thinned_says_so(deepseek: Report) -> None:
    thinned = memory_curve(replace(deepseek.memory, live=deepseek.memory.live[:50]))
    assert thinned is not None
    assert thinned["layout"]["meta"]["note"].startswith(f"50 of {len(deepseek.memory.live):,} changes")


@pytest.mark.parametrize("name", ["by phase and family", "by source file"])
def test_a_treemap_adds_up_to_the_peak(name: str, deepseek: Report) -> None:
    (trace,) = peak_treemaps(deepseek.memory)[name]["data"]
    values = dict(zip(trace["ids"], trace["values"], strict=True))
    assert len(values) == len(trace["ids"])
    assert values["all"] == deepseek.memory.peak_bytes
    inner = dict.fromkeys(trace["parents"], 0)
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        inner[parent] += value
    assert all(values[parent] == total for parent, total in inner.items() if parent)


def test_the_roofline_has_the_families_with_a_time(page: str, deepseek: Report) -> None:
    (trace,) = embedded(page)["charts"]["roofline"]["data"]
    assert trace["x"] == [p.intensity for p in deepseek.time.roofline if p.intensity]
    assert all(0 < share <= 1.01 for share in trace["y"])


def test_a_buffer_tells_its_life(page: str, deepseek: Report) -> None:
    first, told = deepseek.memory.buffers_at_peak[0], embedded(page)["buffers"][0]
    assert (told["bytes"], told["first"], told["last"]) == (first.bytes, first.first, first.last)
    assert first.instruction is not None
    assert told["instruction"] == first.instruction.name
    assert told["users"]


def test_a_module_of_which_little_is_known_has_a_page_too(tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text(
        "HloModule small\n\nENTRY main {\n  x = f32[8] parameter(0)\n  ROOT y = f32[8] negate(x)\n}\n"
    )
    page = load(path).to_html()
    assert "unknown" in page
    assert embedded(page)["charts"] == {
        "curve": None,
        "treemaps": {},
        "roofline": None,
        "lanes": {},
        "graphs": {},
    }


def test_names_stay_names(hostile: Report) -> None:
    page = hostile.to_html()
    parsed = Page(page)
    assert parsed.tags.count("script") == 4
    assert "img" not in parsed.tags
    assert not any(name.startswith("on") for name, _ in parsed.attributes)
    assert all(c.isprintable() or c in "\n\t" for c in "".join(parsed.text))
    assert "z" * 2_000 not in page
    assert "<" not in parsed.scripts[0]


@pytest.mark.parametrize("missing", ["itables", "jinja2", "plotly"])
def test_a_missing_library_is_named(missing: str, deepseek: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == missing else find_spec(name)

    monkeypatch.setattr(html_page, "find_spec", find)
    with pytest.raises(UserError, match=rf"needs {missing}.*hloscope\[html\]"):
        deepseek.to_html()


def test_the_library_is_only_loaded_for_a_page() -> None:
    code = "import sys, hloscope.report.text; print('plotly' in sys.modules, 'jinja2' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]


def test_a_step_that_does_not_fit_says_where_to_begin(dump_file: Callable[[str], Path]) -> None:
    made = Page(load(dump_file("oom"), topology="v5e:2x4").to_html())
    text = " ".join(" ".join(made.text).split())
    assert (
        "8.7 GiB too much. Findings about what is alive at the peak: HS308 (10.0 GiB), HS101 (10.0 GiB)"
        in text
    )
    assert "The compile failed: the step does not fit" in text
    # What is to be done is not the finding that wastes most, but that which is alive at the peak.
    assert "What to do? HS308" in text


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    """A contrast of 4.5 at least (WCAG AA), in light and in dark."""
    style = Path(html_page.__file__).with_name("style.css").read_text("utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w{6});", style.partition(theme)[2].partition("}")[0]))

    def luminance(colour: str) -> float:
        shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for name in ("ink", "soft", "link", "good", "bad"):
        for behind in ("paper", "card"):
            low, high = sorted((luminance(colours[name]), luminance(colours[behind])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (name, behind)
