"""Modules deeper in a folder, and files of hloscope's own store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hloscope import load
from hloscope.capture import Artifact
from hloscope.capture.artifact import MANIFEST, write_artifact
from hloscope.cli.main import main
from hloscope.errors import UserError
from hloscope.report import dumps
from hloscope.report.dumps import choose, dumped_modules

DumpFile = Callable[[str], Path]
BEFORE = "HloModule jit_step\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"


def put(place: Path, size: int = 10) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(bytes(size))
    return place


def test_the_log_folder_of_xprof(dump_file: DumpFile, tmp_path: Path) -> None:
    assert main(["export", str(dump_file("oom")), "--xprof", str(tmp_path)]) == 0
    run = next((tmp_path / "plugins" / "profile").iterdir())
    # The trace itself is larger than any module, and XProf keeps its tables beside it.
    put(run / "host.xplane.pb", 10_000_000)
    put(run / "ALL_HOSTS.op_stats.pb", 9_000_000)
    put(tmp_path / "plugins" / "other" / "notes.txt")
    for folder in (tmp_path, tmp_path / "plugins" / "profile", run):
        report = load(folder)
        assert (report.target.module, report.memory.arena_bytes is None) == ("jit_step", False)
    (found,) = dumped_modules(tmp_path)
    assert (found.label, found.module) == (f"plugins/profile/{run.name}/jit_step(1)", "jit_step(1)")


def test_the_nearest_modules_count(tmp_path: Path) -> None:
    name = "module_0000.jit_step.after_optimizations.hlo.pb"
    near = put(tmp_path / "b" / "c" / name)
    put(tmp_path / "a" / "b" / "c" / "module_0000.jit_old.after_optimizations.hlo.pb")
    assert choose(tmp_path, None)[0].path == near


def test_how_far_a_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "module_0000.jit_step.after_optimizations.hlo.pb"
    put(tmp_path / "1" / "2" / "3" / "4" / "5" / name)
    put(tmp_path / "deep" / "1" / "2" / "3" / "4" / "5" / "6" / name)
    assert len(dumped_modules(tmp_path)) == 1
    assert dumped_modules(tmp_path / "deep") == []
    monkeypatch.setattr(dumps, "_MOST_ENTRIES", 3)
    with pytest.raises(
        UserError, match=r"no module in the first \d files below .*: name the folder that the dump"
    ):
        dumped_modules(tmp_path)


def test_links_lead_to_a_folder_once(tmp_path: Path) -> None:
    name = "module_0000.jit_step.after_optimizations.hlo.pb"
    dump = put(tmp_path / "elsewhere" / name).parent
    runs = tmp_path / "runs"
    (runs / "latest").mkdir(parents=True)
    os.symlink(runs, runs / "latest" / "back")
    os.symlink("self", runs / "self")
    assert dumped_modules(runs) == []
    os.symlink(dump, runs / "latest" / "dump")
    os.symlink(dump, runs / "latest" / "again")
    (found,) = dumped_modules(runs)
    assert found.label == "latest/again/module_0000.jit_step"


def test_no_output_takes_the_place_of_a_deep_module(
    dump_file: DumpFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a" / "b" / "c" / "module_0000.jit_step.after_optimizations.hlo.pb.gz"
    place.parent.mkdir(parents=True)
    shutil.copy(dump_file("oom"), place)
    before = place.read_bytes()
    assert main(["export", str(tmp_path), "--proto", str(place)]) == 2
    assert "is a file of the target" in capsys.readouterr().err
    assert place.read_bytes() == before


@pytest.fixture
def stored(dump_file: DumpFile, tmp_path: Path) -> Artifact:
    """What a failed compile left in the store."""
    shutil.copy(dump_file("oom"), tmp_path / "after_optimizations.hlo.pb.gz")
    (tmp_path / "before_optimizations.txt").write_text(BEFORE)
    shutil.copy(dump_file("oom"), tmp_path / "other.hlo.pb.gz")
    artifact = Artifact(
        path=tmp_path,
        hlo_path=tmp_path / "after_optimizations.hlo.pb.gz",
        before_hlo_path=tmp_path / "before_optimizations.txt",
        module_name="jit_step",
        step_name="step",
        source_file="step.py",
        topology="v5e:2x4",
        platform="tpu",
        chip="v5e",
        num_devices=8,
        versions={},
        flags={"xla_x": "1"},
        compiler_options={},
        parameter_names=[],
        warnings=[],
        created="2026-01-01T00:00:00+00:00",
        key="k",
        status="failed",
        error="the step does not fit",
    )
    write_artifact(artifact, {})
    return artifact


def test_a_file_of_the_store_alone(stored: Artifact) -> None:
    alone, folder = (load(place).target for place in (stored.hlo_path, stored.path))
    assert alone == replace(folder, source=str(stored.hlo_path))
    assert (alone.status, alone.error, alone.topology) == ("failed", "the step does not fit", "v5e:2x4")
    before = load(stored.before_hlo_path or "").target
    assert before == replace(
        folder,
        source=str(stored.before_hlo_path),
        hlo_file=str(stored.before_hlo_path),
        instructions=1,
        scheduled=False,
        warnings=("this is the module before optimization: what runs, and its memory, is not decided in it",),
    )
    # What lies in the folder besides is not what was compiled.
    assert load(stored.path / "other.hlo.pb.gz").target.topology is None


def test_a_file_beside_a_damaged_record(stored: Artifact) -> None:
    (stored.path / MANIFEST).write_text("{")
    target = load(stored.hlo_path).target
    assert target.topology is None
    assert target.warnings[0].startswith("how this was compiled is not known: ")
