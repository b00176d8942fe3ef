"""From opening the HTML report in Chromium until its overview and its memory chart answer, in milliseconds.

    python benchmarks/page_start.py                                   # DeepSeek-V3 671B
    python benchmarks/page_start.py real.hlo.pb --topology v6e:4x4

Each round opens the page in a browser context of its own, beside the least page that draws a line with the same
plotly: a slow or busy machine is slow for both, and the difference is what the report adds. CPU is that of the page's
main thread until then, which a busy machine changes least.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from _process import ROOT, machine
from plotly.offline import get_plotlyjs

from hloscope.report.build import load

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DEEPSEEK = ROOT / "tests" / "data" / "deepseek3_671b.hlo.pb.gz"
LEAST = """<!DOCTYPE html><meta charset="utf-8"><div id="line"></div><script>%s</script>
<script>Plotly.newPlot("line", [{ y: [1, 2] }]); performance.mark("usable")
document.documentElement.dataset.ready = "yes"</script>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Milliseconds of one opening: until the page is of use, of CPU until then, until its tables are made."""

    usable: float
    cpu: float
    ready: float


def opened(browser: Browser, page: Path) -> Start:
    """Open a page and time it."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    tab = context.new_page()
    browser.start_tracing(page=tab, categories=["toplevel", "blink.user_timing"])
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
    usable, ready = tab.evaluate("[performance.getEntriesByName('usable')[0].startTime, performance.now()]")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    context.close()
    mark = next(e for e in events if e["name"] == "usable")
    thread = [e for e in events if (e["pid"], e["tid"]) == (mark["pid"], mark["tid"]) and "tts" in e]
    cpu = mark["tts"] - min(e["tts"] for e in thread)
    return Start(usable=usable, cpu=cpu / 1000, ready=ready)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=DEEPSEEK)
    parser.add_argument("--topology", default="tpu7x:8x8x4")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    print(machine())
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        report, least = Path(folder, "report.html"), Path(folder, "least.html")
        report.write_text(load(given.file, topology=given.topology).to_html(), encoding="utf-8")
        least.write_text(LEAST % get_plotlyjs(), encoding="utf-8")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        # As root there is no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        rounds = [(opened(browser, report), opened(browser, least)) for _ in range(given.rounds)]
        browser.close()
        print(f"{given.file.name}: {report.stat().st_size / 1e6:.2f} MB, {given.rounds} rounds")
    for name, times in (
        ("report usable", [page.usable for page, _ in rounds]),
        ("  of CPU", [page.cpu for page, _ in rounds]),
        ("  all tables made", [page.ready for page, _ in rounds]),
        ("least page with plotly", [floor.usable for _, floor in rounds]),
        ("  of CPU", [floor.cpu for _, floor in rounds]),
    ):
        print(
            f"  {name:24} least {min(times):6,.0f}  median {median(times):6,.0f}  most {max(times):6,.0f} ms"
        )


if __name__ == "__main__":
    main()
