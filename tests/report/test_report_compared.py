"""Pages of what is held against something: a diff, budgets and a baseline. The figures are those of the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hloscope.cli.main import main
from hloscope.report.baseline import REASON

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

_READY = "html[data-ready=yes]"


def opened(browser: Browser, file: Path) -> tuple[Tab, list[str]]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    complaints: list[str] = []
    tab.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("dialog", lambda dialog: complaints.append(dialog.message))
    tab.on("request", lambda r: r.url.startswith(("file:", "blob:", "data:")) or complaints.append(r.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector(_READY, state="attached", timeout=120_000)
    return tab, complaints


def rows(tab: Tab, table: str) -> list[list[str]]:
    lines = tab.locator(f"#{table} tbody tr")
    return [lines.nth(n).locator("td").all_text_contents() for n in range(lines.count())]


def test_the_page_of_a_diff(browser: Browser, dump_file: Callable[[str], Path], tmp_path: Path) -> None:
    page, told = tmp_path / "diff.html", tmp_path / "diff.json"
    sides = [str(dump_file("dense")), str(dump_file("qwen3_30b"))]
    assert main(["diff", *sides, "--html", str(page), "--json", str(told)]) == 0
    diff: dict[str, Any] = json.loads(told.read_text())
    tab, complaints = opened(browser, page)
    assert [row[0] for row in rows(tab, "figures")] == [f["name"] for f in diff["figures"]]
    assert tab.locator("#worse li").count() == len(diff["regressions"]) > 3
    # The change that is largest, whichever way, stands first.
    first = rows(tab, "census")[0]
    info = tab.locator("#census .dt-info").text_content()
    assert info is not None
    assert info.endswith(f"of {len(diff['census'])} entries")
    largest = max(
        abs((c["after"] or {"bytes": 0})["bytes"] - (c["before"] or {"bytes": 0})["bytes"])
        for c in diff["census"]
        if None not in [side["bytes"] for side in (c["before"], c["after"]) if side]
    )
    order = tab.locator("#census tbody tr").first.locator("td").nth(5).get_attribute("data-order")
    assert order == str(largest)
    assert first[0] in ("new", "gone", "changed")
    assert tab.locator("#bytes .barlayer .point").count() >= 6
    assert complaints == []
    tab.close()


def test_columns_of_a_diff_are_sorted_by_their_figures(
    browser: Browser, dump_file: Callable[[str], Path], tmp_path: Path
) -> None:
    page = tmp_path / "diff.html"
    assert (
        main(["diff", str(dump_file("moe_jax010")), str(dump_file("moe_jax012")), "--html", str(page)]) == 0
    )
    tab, complaints = opened(browser, page)
    head = tab.locator("#census th").nth(4)
    assert (head.text_content() or "").strip() == "bytes"
    head.click()
    head.click()
    tab.locator("#census th[aria-sort=descending]").wait_for(state="attached")
    orders = tab.locator("#census tbody tr td:nth-child(5)").evaluate_all(
        "all => all.map(e => +e.dataset.order)"
    )
    assert len(orders) > 5
    assert orders == sorted(orders, reverse=True)
    assert orders != sorted(orders, key=str, reverse=True)
    assert complaints == []
    tab.close()


def test_the_page_of_a_diff_with_itself(dump_file: Callable[[str], Path], tmp_path: Path) -> None:
    page = tmp_path / "diff.html"
    same = str(dump_file("dense"))
    assert main(["diff", same, same, "--html", str(page)]) == 0
    assert "Nothing differs." in page.read_text()


def test_hostile_names_do_nothing_in_a_diff(
    browser: Browser, hostile_file: Path, dump_file: Callable[[str], Path], tmp_path: Path
) -> None:
    page = tmp_path / "diff.html"
    assert main(["diff", str(dump_file("dense")), str(hostile_file), "--html", str(page)]) == 0
    tab, complaints = opened(browser, page)
    assert "owned" not in tab.title()
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert complaints == []
    tab.close()


def test_the_page_of_a_check(
    browser: Browser, dump_file: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, baseline = tmp_path / "check.html", tmp_path / "baseline.toml"
    target = str(dump_file("dense"))
    assert main(["analyze", target, "--write-baseline", str(baseline)]) == 0
    text = baseline.read_text()
    count = text.count(f'reason = "{REASON}"')
    assert count > 2
    baseline.write_text(text.replace(REASON, "known <b>"))
    budgets = ["--budget", "peak=1GiB", "--budget", "HS101=3"]
    command = ["check", target, *budgets, "--baseline", str(baseline), "--html", str(page)]
    assert main(command) == 1
    capsys.readouterr()
    tab, complaints = opened(browser, page)
    assert [row[:4] for row in rows(tab, "budgets")] == [
        ["peak", "1.0 GiB", "1.1 GiB", "over"],
        ["HS101", "3", "0", "kept"],
    ]
    accepted = rows(tab, "accepted")
    assert len(accepted) == count
    assert {row[2] for row in accepted} == {"known <b>"}
    assert "None: the rules found nothing" in (tab.locator("#findings").text_content() or "")
    assert complaints == []
    tab.close()


@pytest.mark.parametrize("command", ["check", "diff", "apply-rules"])
def test_a_page_is_a_file(
    command: str, dump_file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(dump_file("dense")) if command != "apply-rules" else str(Path(__file__))
    assert main([command, target, *([target] if command == "diff" else []), "--html", "-"]) == 2
    assert "--html takes a file" in capsys.readouterr().err
