"""`hloscope kernel` on small kernels that are compiled here, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hloscope.cli.main import main
from hloscope.devices import chips

STEPS = Path(__file__).parents[1] / "steps" / "kernels.py"
WHOLE = 131_072 * 512 * 4  # bytes of the rows
BLOCK = WHOLE // 256


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["kernel", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def kernel(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json", "-", "--quiet")
    assert code == 0, err
    (found,) = json.loads(out)["kernels"]
    return found


@pytest.mark.tpu_compile
@pytest.mark.parametrize("topology", ["v5p:2x2x1", "tpu7x:2x2x1"])
def test_a_copy_is_bound_by_memory(topology: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = kernel(capsys, f"{STEPS}:double", "--topology", topology)
    assert (found["name"], found["bound_by"]) == ("double", "memory")
    assert (found["grid"], found["steps"], found["all_steps"]) == ([256], 256, 256)
    assert (found["read_bytes"], found["written_bytes"]) == (WHOLE, WHOLE)
    chip = chips()[topology.split(":")[0]]
    speed = chip.hbm_efficiency * chip.hbm_bytes_per_second
    assert found["seconds"] == pytest.approx(2 * WHOLE / speed + found["compute_seconds"])
    # Both ways, and the first fetch and the last write, which nothing hides.
    assert found["least_seconds"] == pytest.approx((2 * WHOLE + 2 * BLOCK) / speed)
    assert 0 < found["compute_seconds"] < found["transfer_seconds"]
    assert found["spills"] == found["fills"] == 0
    # Two buffers of each block.
    assert found["vmem_bytes"] == 4 * BLOCK
    assert ("not calibrated" in found["source_of_figure"]) == (topology != "tpu7x:2x2x1")


@pytest.mark.tpu_compile
def test_many_transcendentals_are_bound_by_the_vector_unit(capsys: pytest.CaptureFixture[str]) -> None:
    found = kernel(capsys, f"{STEPS}:busy")
    assert found["bound_by"] in ("vector unit", "issue")
    assert found["compute_seconds"] > found["transfer_seconds"]
    # 24 tanh of 1024 elements an instruction, one transcendental slot: no fewer bundles than that.
    assert found["bundles"] >= 24 * BLOCK / 4 / 1024
    assert found["busy"]["EUP"] > 0.3


@pytest.mark.tpu_compile
def test_a_grid_that_depends_on_data_runs_the_valid_share(capsys: pytest.CaptureFixture[str]) -> None:
    half = kernel(capsys, f"{STEPS}:first_rows")
    assert (half["grid"], half["all_steps"], half["steps"], half["valid_fraction"]) == ([None], 256, 128, 0.5)
    assert half["read_bytes"] == WHOLE // 2
    all_of_it = kernel(capsys, f"{STEPS}:first_rows", "--valid-fraction", "1")
    assert all_of_it["steps"] == 256
    code, out, _ = run(capsys, f"{STEPS}:first_rows", "--quiet")
    assert code == 0
    assert "first_rows" in out
    assert "bound by memory" in out
    assert "128 of 256 steps" in out


@pytest.mark.tpu_compile
def test_what_the_compiler_makes_of_an_operation_is_read_alike(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, f"{STEPS}:no_kernel", "--json", "-", "--quiet")
    assert code == 0, err
    report = json.loads(out)
    assert report["kernels"] == []
    (found,) = report["fusions"]
    assert (found["read_bytes"], found["written_bytes"], found["bound_by"]) == (WHOLE, WHOLE, "memory")
    assert found["steps"] > 1
    # It loads and stores each register, three and two a cycle at most.
    assert found["bundles"] * found["steps"] >= WHOLE / 4096 / 2
    assert found["least_seconds"] < found["seconds"]


@pytest.mark.tpu_compile
def test_a_step_of_a_scalar_has_nothing_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, f"{STEPS}:scalar", "--quiet")
    assert code == 2
    assert "neither a Pallas kernel nor a fusion" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["somewhere.hlo.pb"], "is no step file"),
        (["missing.py"], "there is no file"),
        ([f"{STEPS}:double", "--valid-fraction", "2"], "share of rows"),
        ([f"{STEPS}:double", "--timeout", "0"], "--timeout takes seconds above 0"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments, "--quiet")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
