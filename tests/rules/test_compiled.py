"""The rules on steps that are compiled here, where both sides of each rule can be had."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.capture import capture_step
from hloscope.engine import run_rules
from hloscope.hlo import read_hlo

STEPS = Path(__file__).parents[1] / "steps"

pytestmark = pytest.mark.tpu_compile


@cache
def compiled(step: str) -> Analyses:
    artifact = capture_step(str(STEPS / step))
    return Analyses(
        read_hlo(artifact.hlo_path).module,
        mesh=artifact.mesh_axes,
        mesh_device_ids=artifact.mesh_device_ids,
    )


def test_hs201_fires_on_the_sharding_that_makes_the_compiler_transpose():
    (finding,) = run_rules(compiled("sharded_gradient.py:embed_sharded"), select=["HS201"])
    assert finding.facts["mesh_axes"] == ["fsdp"]
    assert finding.bytes == 2 * 64 * 1024 * 4096 * 2


def test_hs201_stays_silent_on_the_other_sharding():
    assert run_rules(compiled("sharded_gradient.py:mlp_sharded"), select=["HS201"]) == ()


def test_a_dropless_buffer_wastes_nothing_and_the_reason_is_told():
    analyses = compiled("ragged_layer.py:dropless")
    buffers = analyses.rows.buffers
    assert sum(len(b.work) for b in buffers) >= 5, "the same fusions stand on it as on a padded buffer"
    assert {b.valid_fraction for b in buffers} == {1.0}
    assert all("32,768 assignments" in b.reason for b in buffers)
    assert run_rules(analyses, select=["HS1"]) == ()


def test_spare_rows_are_priced_without_being_told():
    analyses = compiled("ragged_layer.py:padded")
    assert {(b.rows, b.valid_fraction) for b in analyses.rows.buffers} == {(65536, 0.5)}
    findings = run_rules(analyses, select=["HS101", "HS102"])
    assert {f.code for f in findings} == {"HS101", "HS102"}
    assert all(f.saved_bytes == round(f.bytes * 0.5) for f in findings)  # pyright: ignore


def test_the_joining_of_two_half_gradients_is_a_concatenation():
    (finding,) = run_rules(compiled("ragged_layer.py:padded"), select=["HS102"])
    assert [i.shape.short for i in finding.instructions] == ["bf16[65536,1024]"]
    assert "backward" in finding.title
