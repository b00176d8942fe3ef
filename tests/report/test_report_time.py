"""The time of a step in the JSON report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloscope.hlo import HloFile
from hloscope.report.build import build_report, load
from hloscope.report.target import Opened


def report_of(file: HloFile, **options: Any) -> dict[str, Any]:
    report = build_report(Opened(source=str(file.path), file=file), **options)
    return json.loads(json.dumps(report.to_dict(), allow_nan=False))


def test_times_need_a_chip(shared_dump: Callable[[str], HloFile]) -> None:
    known = report_of(shared_dump("deepseek"), topology="tpu7x:8x8x4", valid_fraction=0.25)
    time = known["time"]
    assert time["seconds"] > 0
    assert time["model"].startswith("tpu7x, calibrated: transfers at 100 % of HBM")
    assert time["calibrated"] is True
    assert sum(time["by_phase"].values()) == pytest.approx(time["seconds"])
    lines = [line for line in known["census"] if line["family"] == "activation"]
    assert {line["bound_by"] for line in lines} == {"bandwidth"}
    assert all(line["seconds"] == pytest.approx(line["step_seconds"]) for line in lines)
    priced = [f["saved_seconds"] for f in known["findings"] if f["code"] in ("HS101", "HS201")]
    assert priced
    assert all(seconds > 0 for seconds in priced)

    unknown = report_of(shared_dump("deepseek"), valid_fraction=0.25)
    assert unknown["time"]["seconds"] is None
    assert {line["seconds"] for line in unknown["census"] + unknown["collectives"]} == {None}
    assert {f["saved_seconds"] for f in unknown["findings"]} == {None}


@pytest.mark.parametrize(
    ("chip", "said"),
    [
        ("v6e", "v6e, calibrated: transfers at 100 % of HBM, matrix units at 89 %, links at 87 %"),
        (
            "v5e",
            "v5e, calibrated: matrix units at 93.5 %, links at 85.5 %; not calibrated: transfers at 100 % of HBM",
        ),
        ("v4", "v4, not calibrated: transfers at 100 % of HBM, matrix units at 100 %, links at 90 %"),
    ],
)
def test_only_what_was_held_against_a_clock_is_calibrated(
    chip: str, said: str, shared_dump: Callable[[str], HloFile]
) -> None:
    time = report_of(shared_dump("dense"), topology={"v4": "v4:2x2x2"}.get(chip, f"{chip}:2x4"))["time"]
    assert time["model"] == said
    assert time["calibrated"] is (chip == "v6e")


def test_savings_are_the_share_of_empty_rows(shared_dump: Callable[[str], HloFile]) -> None:
    """Three quarters of the rows are empty: an activation that streams rows alone saves three quarters of its time."""
    report = report_of(shared_dump("deepseek"), topology="tpu7x:8x8x4", valid_fraction=0.25)
    seconds = {tuple(line["instructions"]): line["seconds"] for line in report["census"]}
    found = [f for f in report["findings"] if f["code"] == "HS101" and tuple(f["instructions"]) in seconds]
    assert found
    for finding in found:
        whole = seconds[tuple(finding["instructions"])]
        assert finding["saved_seconds"] == pytest.approx(0.75 * whole, rel=0.01)


def test_figures_of_a_user_stand_in_the_report(shared_dump: Callable[[str], HloFile], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[v6e]\nhbm_efficiency = 0.375\n")
    given = report_of(shared_dump("dense"), topology="v6e:2x4", chip_figures=str(file))
    own = report_of(shared_dump("dense"), topology="v6e:2x4")
    assert given["time"]["by_bound"]["bandwidth"] > 1.9 * own["time"]["by_bound"]["bandwidth"]
    assert "mine.toml" in given["time"]["model"]


DENSE = Path(__file__).parents[1] / "data" / "qwen3_0p6b_dense.hlo.pb.gz"


@pytest.mark.parametrize(
    ("name", "topology", "said"),
    [
        (DENSE.name, None, "no times: the chip is unknown; --topology names it"),
        (DENSE.name, "v6e:2x4", None),
        (DENSE.name, "v6e:1x1", "no times: where the devices stand is unknown"),
        (
            "qwen3_0p6b_dense.txt.gz",
            "v6e:2x4",
            "no times: which device runs which part stands in the *.hlo.pb alone",
        ),
    ],
)
def test_collectives_without_a_time_say_why(name: str, topology: str | None, said: str | None) -> None:
    text = load(DENSE.with_name(name), topology=topology).to_text(width=120)
    section = text[text.index("\nCollectives ") :]
    assert ("no times:" in section) == (said is not None)
    assert said is None or said in section


def test_a_dump_that_tells_its_topology_has_times_of_collectives(tmp_path: Path) -> None:
    (tmp_path / "module_0001.jit_train_step.cl_1.after_optimizations.hlo.pb.gz").write_bytes(
        DENSE.read_bytes()
    )
    target = """topology_args {
      version: TPU_VERSION_GHOSTLITE
      chips_per_host_bounds { x: 2 y: 2 z: 1 }
      host_bounds { x: 1 y: 2 z: 1 }
    }"""
    (tmp_path / "module_0001.jit_train_step.cl_1.target_arguments.txt").write_text(target)
    report = load(tmp_path)
    assert report.target.topology == "v6e:2x4"
    told = load(DENSE, topology="v6e:2x4").collectives.collectives
    assert [c.seconds for c in report.collectives.collectives] == [c.seconds for c in told]
    assert all(c.seconds for c in told)
