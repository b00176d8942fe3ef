"""Draws the pictures of docs/concepts.md with the report's own charts, from the real modules of the tests.

    python tools/pictures.py        # needs Chromium; writes docs/pictures/*.png

They stand on white, so that they can be read on a dark page too.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from hloscope.report.build import load
from hloscope.report.html.charts import memory_curve, peak_treemaps
from hloscope.report.html.lanes import lanes

ROOT = Path(__file__).parents[1]
MODULE, TOPOLOGY = ROOT / "tests" / "data" / "deepseek3_671b.hlo.pb.gz", "tpu7x:8x8x4"
PLACE = ROOT / "docs" / "pictures"
WIDTH = 900
HEIGHTS = {"memory": 340, "peak": 420, "lanes": 320}
DRAW = """([figure, width, height]) => Plotly.toImage(
    { data: figure.data, layout: { ...figure.layout, paper_bgcolor: "white", plot_bgcolor: "white" } },
    { format: "png", width, height, scale: 2 })"""


def figures() -> Mapping[str, Any]:
    """The charts by the names of their files."""
    report = load(MODULE, topology=TOPOLOGY)
    return {
        "memory": memory_curve(report.memory),
        "peak": peak_treemaps(report.memory)["by phase and family"],
        "lanes": next(iter(lanes(report.time).values())),
    }


def main() -> None:
    """Write the pictures."""
    from plotly.offline import get_plotlyjs

    PLACE.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        # As root there is no sandbox.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        tab.add_script_tag(content=get_plotlyjs())
        for name, figure in figures().items():
            url: str = tab.evaluate(DRAW, [figure, WIDTH, HEIGHTS[name]])
            data = base64.b64decode(url.partition(",")[2])
            (PLACE / f"{name}.png").write_bytes(data)
            print(f"{name}.png: {len(data) / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
