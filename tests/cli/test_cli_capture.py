from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloscope.capture import Artifact, Event, MemoryStats
from hloscope.capture.artifact import HLO_FILE, write_artifact
from hloscope.errors import CompileError, UserError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def artifact(oom: Path, tmp_path: Path) -> Artifact:
    """What a capture of the toy step leaves, without its compile."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / HLO_FILE).write_bytes(gzip.decompress(oom.read_bytes()))
    made = Artifact(
        path=folder,
        hlo_path=folder / HLO_FILE,
        module_name="jit_step",
        step_name="train",
        source_file="train.py",
        topology="v5e:2x4",
        platform="tpu",
        chip="v5e",
        num_devices=8,
        mesh_axes={"data": 2, "expert": 4},
        mesh_device_ids=list(range(8)),
        hbm_limit_bytes=16911433728,
        memory_stats=MemoryStats(temp_bytes=25 << 30, generated_code_bytes=1 << 20),
        versions={"jax": "0.12.0.1", "hloscope": None},
        flags={"xla_tpu_scoped_vmem_limit_kib": "65536"},
        compiler_options={"xla_some_option": True},
        valid_fraction=0.5,
        parameter_names=["params['a']", "params['b']"],
        warnings=["a warning of the compiler"],
        compile_seconds=12.5,
        created="2026-01-01T00:00:00Z",
        key="0" * 40,
    )
    write_artifact(made, {})
    return made


def test_a_step_is_captured_and_reported(
    run: Run, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def capture(target: str, **options: Any) -> Artifact:
        asked.append((target, options))
        options["on_event"](Event(stage="compile", seconds=1.5))
        options["on_event"](Event(stage="done", seconds=9.0, detail="cached"))
        return artifact

    monkeypatch.setattr("hloscope.capture.launch.capture_step", capture)
    code, out, err = run(
        "analyze", "train.py:train", "--topology", "v5e:2x4", "--fresh", "--timeout", "60",
        "--json", "-", "--budget", "temp=30GiB",
    )  # fmt: skip
    assert code == 0
    report = json.loads(out)
    assert report["target"]["source"] == "train.py:train"
    assert report["target"]["mesh"] == {"data": 2, "expert": 4}
    assert report["target"]["flags"] == {"xla_tpu_scoped_vmem_limit_kib": "65536"}
    assert report["target"]["warnings"] == ["a warning of the compiler"]
    assert (report["target"]["valid_fraction"], report["target"]["valid_fraction_source"]) == (0.5, "step")
    assert report["memory"]["temp_bytes"] == 25 << 30
    assert report["memory"]["hbm_limit_bytes"] == 16911433728
    ((target, options),) = asked
    assert target == "train.py:train"
    assert (options["topology"], options["fresh"], options["timeout"]) == ("v5e:2x4", True, 60)
    assert err == "[   1.5 s] compiling\n[   9.0 s] compiled before, taken from the store\n"


def test_quiet_says_no_stages(run: Run, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(_: str, *, on_event: object, **__: Any) -> Artifact:
        assert on_event is None
        return artifact

    monkeypatch.setattr("hloscope.capture.launch.capture_step", capture)
    code, out, err = run("analyze", "train.py", "--quiet", "--valid-fraction", "0.75")
    assert (code, err) == (0, "")
    assert "a warning of the compiler" in out


def test_an_artifact_is_a_target(run: Run, artifact: Artifact) -> None:
    out = run("analyze", artifact.path)[1]
    assert out.startswith("jit_step · v5e, 8 devices (data 2 × expert 4)")
    assert run("analyze", artifact.path, "--module", "other")[0] == 2


def test_a_failed_compile_is_reported_all_the_same(
    run: Run, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failed = dataclasses.replace(artifact, status="failed", error="it does not fit", memory_stats=None)
    write_artifact(failed, {})
    error = CompileError("it does not fit", log_tail="the log", dump_dir=str(artifact.path))
    monkeypatch.setattr("hloscope.capture.launch.capture_step", raiser(error))
    file = tmp_path / "r.json"
    code, out, err = run("analyze", "train.py", "--json", file, "--budget", "temp=1B", "--fail-on", "info")
    assert code == 3
    assert "the compile failed: it does not fit" in out
    assert "Alive at the peak" in out
    assert err == "error: it does not fit\n"
    report = json.loads(file.read_text())
    assert (report["target"]["status"], report["target"]["error"]) == ("failed", "it does not fit")
    assert report["target"]["source"] == "train.py"


def test_what_a_failed_compile_left_is_exported_and_drawn(
    run: Run, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The Memory Viewer is wanted most for what did not fit."""
    write_artifact(dataclasses.replace(artifact, status="failed", error="it does not fit"), {})
    error = CompileError("it does not fit", dump_dir=str(artifact.path))
    monkeypatch.setattr("hloscope.capture.launch.capture_step", raiser(error))
    place = tmp_path / "out.pb"
    code, out, err = run("export", "train.py", "--proto", place)
    assert (code, err) == (3, "error: it does not fit\n")
    assert out == f"{place}: the module and its buffer assignment as an HloProto\n"
    assert len(place.read_bytes()) == len(artifact.hlo_path.read_bytes())
    code, out, err = run("graph", "train.py", "ragged-dot-none.1", "--hops", "1")
    assert (code, err) == (3, "error: it does not fit\n")
    assert out.startswith("%ragged-dot-none.1  ")


def test_a_failed_compile_that_left_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = CompileError("the worker died of SIGSEGV", log_tail="last\x1b[31m\nwords")
    monkeypatch.setattr("hloscope.capture.launch.capture_step", raiser(error))
    code, out, err = run("analyze", "train.py", "--json", tmp_path / "r.json")
    assert (code, out) == (3, "")
    assert err == "  | last\\x1b[31m\n  | words\nerror: the worker died of SIGSEGV\n"
    assert list(tmp_path.iterdir()) == []


def test_a_failed_compile_with_a_dump_of_no_use(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = CompileError("it failed", dump_dir=str(tmp_path / "gone"))
    monkeypatch.setattr("hloscope.capture.launch.capture_step", raiser(error))
    assert run("analyze", "train.py") == (3, "", "error: it failed\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("train.py:3: SyntaxError"), 2, "error: train.py:3: SyntaxError\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_of_a_capture(
    error: BaseException, code: int, message: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloscope.capture.launch.capture_step", raiser(error))
    assert run("analyze", "train.py")[0::2] == (code, message)


def raiser(error: BaseException) -> Callable[..., Artifact]:
    def capture(*_: object, **__: object) -> Artifact:
        raise error

    return capture


def test_codes_of_an_unset_variable_are_refused_before_anything_runs(run: Run) -> None:
    code, out, err = run("capture", "--select", "", "--", "nothing-of-this-name")
    assert (code, out) == (2, "")
    assert err == "error: --select is empty: write codes such as HS2 or HS201, or leave it out\n"
