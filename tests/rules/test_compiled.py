"""The rules on steps that are compiled here, where both sides of each rule can be had."""

from __future__ import annotations

import tomllib
from functools import cache, partial
from pathlib import Path

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.capture import capture_step
from hloscope.cli.main import main
from hloscope.engine import load_rules, run_rules
from hloscope.report.build import analyses_of
from hloscope.report.target import open_artifact
from hloscope.rule import Severity

GOLDEN = Path(__file__).parents[1] / "golden" / "findings_of_real_modules.txt"
STEPS = Path(__file__).parents[1] / "steps"

pytestmark = pytest.mark.tpu_compile


@cache
def compiled(step: str) -> Analyses:
    return analyses_of(open_artifact(capture_step(str(STEPS / step)), step))


def titles(step: str, code: str) -> list[str]:
    return sorted(f.title for f in run_rules(compiled(step), select=[code]))


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


def test_what_one_device_can_waste():
    found = partial(titles, "wasteful.py:one_device")
    assert found("HS105") == ["ragged rows in a wide type: f32[8192,1024]"]
    assert found("HS303")[0].startswith("loop state copied in every trip: f32[8192,4096]")
    assert found("HS304") == ["donated f32[1024,1024] that no output takes over"]
    assert found("HS401") == ["expert weights bf16[4,512,1024] stacked from their parts"]
    assert found("HS403") == ["grouped matmul expanded over 4 groups: bf16[4,8192,512]"]
    assert found("HS505") == [
        "a message from the host of token[] in the step",
        "a message to the host of f32[] in the step",
    ]


def test_hs402_tells_a_shape_outside_of_the_region_of_its_kernel_from_one_inside():
    (finding,) = run_rules(compiled("wasteful.py:one_device"), select=["HS402"])
    assert finding.title == "grouped matmul 8192 x 512 x 1024, 4 groups by pallas_tpu, outside its region"
    assert finding.details[0] == (
        "the wider side: 1,024, at least 2,048; the narrower side: 512, at least 1,024; groups: 4, at least 16"
    )
    assert finding.severity is Severity.INFO, "nobody timed it on the device"


def test_what_devices_can_waste_among_themselves():
    found = partial(titles, "wasteful.py:sharded")
    assert found("HS202") == ["weights of all experts bf16[8,512,1024] gathered over x"]
    assert found("HS207") == ["bf16[8192,2048] gathered over x, then sliced"]
    assert found("HS208") == ["gathered bf16[1,2048,2048] over x forward saved for every trip"]
    assert "exposed collectives over x" in found("HS206")


def test_hs204_tells_both_halves_of_both_kinds_of_collectives():
    """What was widened before, and what is narrowed after; a warning where a value is moved, a remark where it is
    summed. The exchange whose result is rounded at once is none: the compiler rounds it before."""
    found = run_rules(compiled("wasteful.py:sharded"), select=["HS204"])
    assert sorted((f.severity.value, f.title) for f in found) == [
        ("info", "all-reduce of f32[512,2048] over x, widened before it"),
        ("info", "reduce-scatter of f32[128,2048] over x, narrowed after it"),
        ("warning", "all-gather of f32[2048,2048] over x, narrowed after it"),
        ("warning", "collective-permute of f32[2048,2048] over x, widened before it"),
    ]
    assert all(f.saved_bytes * 2 == f.bytes for f in found)  # pyright: ignore
    exchanged = [
        c.shape for c in compiled("wasteful.py:sharded").collectives.collectives if "all-to-all" in c.opcode
    ]
    assert exchanged == ["bf16[512,4,512]"]


def test_no_rule_for_collectives_speaks_of_a_step_without_any():
    assert run_rules(compiled("wasteful.py:one_device"), select=["HS2"]) == ()


def test_each_rule_fires_on_a_real_module():
    """With the shared modules (see `findings_of_real_modules.txt`), and each is silent on one of them or of these."""
    steps = ("wasteful.py:one_device", "wasteful.py:sharded", "ragged_layer.py:padded")
    compiled_here = {f.code for step in steps for f in run_rules(compiled(step))}
    table = GOLDEN.read_text().split("\n\n")[1].splitlines()[1:]
    shared = {line[:5] for line in table if "/" in line}
    silent = {line[:5] for line in table if " - " in line}
    codes = {r.code for r in load_rules()}
    assert compiled_here | shared == codes
    assert codes - silent == {"HS206"}, "which is silent on a step without collectives, above"


def test_a_baseline_of_two_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    steps = [str(STEPS / "wasteful.py:one_device"), str(STEPS / "wasteful.py:sharded")]
    for step in steps:
        assert main(["check", step, "--write-baseline", "known.toml"]) == 0
    for step in steps:
        assert main(["check", step]) == 1
        assert main(["check", step, "--baseline", "known.toml"]) == 0
    names = [s["name"] for s in tomllib.loads(Path("known.toml").read_text())["step"]]
    assert [Path(name).name for name in names] == ["wasteful.py:one_device", "wasteful.py:sharded"]
