"""The examples through the whole tool: compiled for a TPU, analyzed, reported."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_page import check_whole, open_page

from hloscope.capture import Artifact, capture_step
from hloscope.report import Report
from hloscope.report.build import build_report
from hloscope.report.target import open_artifact

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.tpu_compile


@cache
def compiled(name: str) -> tuple[Artifact, Report]:
    target = str(EXAMPLES / name)
    artifact = capture_step(target)
    return artifact, build_report(open_artifact(artifact, target))


@pytest.mark.parametrize("name", ["moe_train_step.py", "dense_train_step.py"])
def test_memory_is_the_compilers_own(name):
    artifact, report = compiled(name)
    stats, memory = artifact.memory_stats, report.memory
    assert memory.disagreements == (), (
        "what the buffer assignment adds up to differs from what the compiler says"
    )
    assert memory.temp_bytes == stats.temp_bytes
    assert memory.peak_bytes == stats.peak_bytes
    assert memory.generated_code_bytes == stats.generated_code_bytes
    assert sum(b.bytes for b in memory.buffers_at_peak) == memory.peak_bytes
    assert memory.arena_bytes < memory.total_bytes < memory.hbm_limit_bytes


@pytest.mark.parametrize("name", ["moe_train_step.py", "dense_train_step.py"])
def test_its_page_is_drawn_whole(name, browser: Browser, tmp_path: Path):
    _, report = compiled(name)
    opened = open_page(browser, report, tmp_path, viewport={"width": 1280, "height": 900})
    check_whole(opened)
    opened.tab.close()


def test_the_moe_step_wastes_what_its_spare_rows_cost():
    _, report = compiled("moe_train_step.py")
    assert {r.buffer.rows for r in report.ragged_buffers} == {32768}
    places = Counter(f.code for f in report.findings for _ in range(f.places))
    assert places["HS101"] >= 4, "the activation forward, recomputed and backward, and the unsort"
    # The older compiler also copies a whole buffer, which is a finding of its own.
    joined = [f for f in report.findings if f.code == "HS102" and f.instructions[0].opcode == "fusion"]
    assert [f.places for f in joined] == [1], (
        "the two halves of the gradient are joined in a pass of their own"
    )
    assert joined[0].instructions[0].shape.short == "bf16[32768,1536]"
    streamed = [f for f in report.findings if f.code in ("HS101", "HS102")]
    assert all(f.executions == 8 for f in streamed), "once a layer"
    assert all(f.source is not None and f.source.file.endswith("_moe.py") for f in streamed)


def test_the_moe_step_reduce_scatters_over_both_axes():
    _, report = compiled("moe_train_step.py")
    assert report.collectives.mesh == {"fsdp": 2, "expert": 4}
    scatters = [c for c in report.collectives.collectives if c.opcode == "reduce-scatter"]
    assert {("fsdp",), ("expert",)} <= {c.mesh_axes for c in scatters}


def test_nothing_ragged_is_found_in_the_dense_step():
    _, report = compiled("dense_train_step.py")
    assert not [f.title for f in report.findings if f.code.startswith(("HS1", "HS4")) or f.code == "HS201"]
    assert report.ragged_buffers == ()


def test_an_unchanged_step_is_not_compiled_again():
    artifact, _ = compiled("moe_train_step.py")
    stages: list[str] = []
    again = capture_step(str(EXAMPLES / "moe_train_step.py"), on_event=lambda e: stages.append(e.stage))
    assert again.key == artifact.key
    assert "compile" not in stages
