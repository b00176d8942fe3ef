"""A report's page in a browser, with what it complained of and asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hloscope.report.model import Report
from hloscope.units import size

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

READY = "html[data-ready=yes]"


@dataclass
class Opened:
    """A page, its report, and what it complained of or asked for."""

    tab: Tab
    report: Report
    complaints: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])


def open_page(browser: Browser, report: Report, folder: Path, **options: Any) -> Opened:
    file = folder / "report.html"
    file.write_text(report.to_html(), encoding="utf-8")
    opened = Opened(browser.new_page(**options), report)
    tab = opened.tab
    tab.on("console", lambda m: opened.complaints.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: opened.complaints.append(str(error)))
    tab.on("dialog", lambda dialog: opened.complaints.append(dialog.message))
    tab.on("request", lambda request: opened.requests.append(request.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector(READY, state="attached", timeout=120_000)
    return opened


def check_whole(opened: Opened) -> None:
    """Everything of a page is drawn, its figures are those of the JSON, and nobody was asked for anything."""
    tab, report = opened.tab, opened.report
    memory = report.to_dict()["memory"]
    for name, key in (("total", "total"), ("peak", "peak"), ("temp", "temp"), ("arguments", "argument")):
        assert tab.locator(f"#figure-{name}").text_content() == size(memory[f"{key}_bytes"])
    charts = tab.locator("main > section .chart[id]:not([id^=graph-])")
    for number in range(charts.count()):
        charts.nth(number).scroll_into_view_if_needed()
        charts.nth(number).locator("svg.main-svg").first.wait_for(state="attached")
    for table, rows in (("census", report.census.families), ("collectives", report.collectives.collectives)):
        shown = tab.locator(f"#{table} tbody tr").count()
        assert shown == (len(rows) if len(rows) <= 25 else 25)
    assert tab.locator("article.finding").count() == len(report.findings)
    assert opened.complaints == []
    assert [u for u in opened.requests if not u.startswith(("file:", "blob:", "data:"))] == []
