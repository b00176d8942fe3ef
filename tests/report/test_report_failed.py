"""A compile that failed is known by what lies beside its module, and says what would have to go."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope import load
from hloscope.capture.beside import look_beside
from hloscope.cli.main import main
from hloscope.errors import UserError
from hloscope.hlo import HloFile, protos
from hloscope.report.terminal import draw
from hloscope.report.text import render

STEM = "module_0000.jit_step.cl_933746096."
TARGET = """\
replica_count: 1
tpu_topology_args {{
  version: TPU_VERSION_{version}
{variant}  chip_config_name: "default"
  chips_per_host_bounds {{
    x: 2
    y: 2
    z: 1
  }}
  host_bounds {{
    x: {x}
    y: {y}
    z: {z}
  }}
}}
"""
FLAGS = """\
# xla_tpu_scoped_vmem_limit_kib in the current tpu_comp_env has a non-default value. See the docs.
xla_tpu_scoped_vmem_limit_kib: 65536
"""


@pytest.fixture
def dump(dump_file: Callable[[str], Path], tmp_path: Path) -> Path:
    """The compiler's dump of the toy step, as far as it has to do with the target."""
    shutil.copy(dump_file("oom"), tmp_path / f"{STEM}after_optimizations.hlo.pb.gz")
    write(tmp_path, "target_arguments.txt", target("VIPERFISH", 1, 2, 1, "lite"))
    write(tmp_path, "tpu_comp_env.txt", FLAGS)
    return tmp_path


def write(folder: Path, name: str, text: str = "") -> None:
    (folder / f"{STEM}{name}").write_text(text)


def target(version: str, x: int, y: int, z: int, variant: str = "") -> str:
    told = f'  variant: "{variant}"\n' if variant else ""
    return TARGET.format(version=version, variant=told, x=x, y=y, z=z)


def analyze(*arguments: object) -> int:
    return main(["analyze", *map(str, arguments)])


def test_out_of_memory(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(dump, "oom_intermediate_module.txt")
    assert analyze(dump, "--json", dump / "report.json") == 3
    out, err = capsys.readouterr()
    said = "the step does not fit: it needs 24.4 GiB of device memory (HBM), a program may have 15.8 GiB"
    assert err == f"error: {said}\n"
    assert out.startswith("jit_step · v5e, 8 devices · ")
    assert f"the compile failed: {said}" in " ".join(out.split())
    assert "8.7 GiB too much  findings about what is alive at the peak\n  HS308  10.0 GiB" in out
    report = json.loads((dump / "report.json").read_text())
    assert (report["target"]["status"], report["target"]["topology"]) == ("failed", "v5e:2x4")
    assert report["target"]["flags"] == {"xla_tpu_scoped_vmem_limit_kib": "65536"}
    over = report["overrun"]
    assert over["excess_bytes"] == over["used_bytes"] - over["limit_bytes"]
    largest = max(b["bytes"] for b in report["memory"]["buffers_at_peak"])
    assert over["findings"][0]["peak_bytes"] == largest == 10 << 30
    assert over["findings"][0]["fingerprint"] in {f["fingerprint"] for f in report["findings"]}


def test_out_of_memory_of_an_unknown_chip(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dump / f"{STEM}target_arguments.txt").unlink()
    write(dump, "oom_intermediate_module.txt")
    assert analyze(dump / f"{STEM}after_optimizations.hlo.pb.gz") == 3
    assert capsys.readouterr().err.endswith("it needs 24.4 GiB of device memory (HBM)\n")
    assert load(dump).overrun is None


def test_out_of_memory_said_to_be_of_a_chip_on_which_it_fits(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(dump, "oom_intermediate_module.txt")
    (dump / f"{STEM}target_arguments.txt").unlink()
    assert analyze(dump, "--topology", "v6e:2x4") == 3
    out, err = capsys.readouterr()
    assert err == "error: the step does not fit: it needs 24.4 GiB of device memory (HBM)\n"
    assert (
        "note: the compile ran out of memory, which on v6e:2x4 it would not have: this was compiled for"
        in out
    )
    for right in ("v5e:2x4", "v5e"):
        assert analyze(dump, "--topology", right) == 3
        out, err = capsys.readouterr()
        assert err.endswith("24.4 GiB of device memory (HBM), a program may have 15.8 GiB\n")
        assert "another chip" not in out


@pytest.mark.parametrize(
    "name", [f"{STEM}oom_intermediate_module.hlo.pb", "my_oom_intermediate_module.hlo.pb"]
)
def test_the_module_that_ran_out_of_memory_alone(
    name: str, shared_dump: Callable[[str], HloFile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the compiler leaves it, it has no buffer assignment."""
    proto = shared_dump("oom").module.proto
    (tmp_path / name).write_bytes(protos.HloProto(hlo_module=proto).SerializeToString())
    assert analyze(tmp_path / name) == 3
    said = "the step does not fit: it needs more device memory (HBM) than there is"
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.mark.parametrize("stage", ["after_optimizations.txt", "oom_intermediate_module.txt.gz"])
def test_text_beside_a_proto_says_where_the_memory_is(stage: str, dump: Path) -> None:
    text = b"HloModule jit_step\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    place = dump / f"{STEM}{stage}"
    place.write_bytes(gzip.compress(text) if stage.endswith(".gz") else text)
    whole = f"{STEM}after_optimizations.hlo.pb.gz"
    assert f"the memory is in the proto beside this: {whole}" in load(place).target.warnings
    assert not any("memory is in" in note for note in load(dump / whole).target.warnings)
    (dump / whole).unlink()
    assert not any("memory is in" in note for note in load(place).target.warnings)


def test_another_failure(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(dump, "target_arguments.txt", target("PUFFERFISH", 1, 1, 2))
    assert analyze(dump) == 3
    assert "generated no code for this module: the compile failed" in capsys.readouterr().err
    write(dump, "after_codegen.txt")
    report = load(dump)
    assert (report.target.status, report.target.error, report.target.topology) == ("ok", None, "v4:2x2x2")
    assert report.overrun is None


@pytest.mark.parametrize("packed", [False, True])
def test_what_a_dump_tells_of_its_chip(packed: bool, tmp_path: Path) -> None:
    name = f"{STEM}target_arguments.txt" + (".gz" if packed else "")
    module = tmp_path / f"1795982160198440.{STEM}after_optimizations.hlo.pb"
    cases = {
        ("6acc60406", 2, 2, 4, ""): ("tpu7x", "tpu7x:4x4x4"),
        ("GHOSTLITE", 8, 8, 1, ""): ("v6e", "v6e:16x16"),
        ("SWORDFISH", 1, 1, 1, ""): (None, None),
    }
    for made, expected in cases.items():
        text = target(*made).encode()
        (tmp_path / f"1795982160198440.{name}").write_bytes(gzip.compress(text) if packed else text)
        assert (look_beside(module).chip, look_beside(module).topology) == expected
    (tmp_path / f"1795982160198440.{name}").write_bytes(b"\x1f\x8bdamaged")
    assert look_beside(module).chip is None


def test_a_topology_that_the_dump_is_not_for(dump: Path, dump_file: Callable[[str], Path]) -> None:
    write(dump, "after_codegen.txt")
    with pytest.raises(UserError, match="was compiled for v5e, not for v6e:2x4"):
        load(dump, topology="v6e:2x4")
    assert "compiled for v5e:2x4, not for v5e:4x4" in load(dump, topology="v5e:4x4").target.warnings[0]
    named = load(dump, topology="v5e").target
    assert (named.warnings, named.topology, named.chip) == ((), "v5e:2x4", "v5e")
    with pytest.raises(UserError, match="holds a module for TPUs, not for cpu:8"):
        load(dump_file("oom"), topology="cpu:8")


def test_a_module_from_before_the_passes(tmp_path: Path) -> None:
    text = "HloModule jit_step\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    write(tmp_path, "before_optimizations.txt", text)
    report = load(tmp_path)
    assert report.target.status == "ok"
    assert "before optimization" in report.target.warnings[0]
    write(tmp_path, "tpu_comp_env.txt")
    assert load(tmp_path).target.status == "failed"


def test_a_host_module_is_told_by_its_name(tmp_path: Path) -> None:
    text = "HloModule jit_step\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    (tmp_path / "module_0001.jit_step.cpu_after_optimizations.txt").write_text(text)
    assert load(tmp_path).target.platform == "cpu"
    with pytest.raises(UserError, match="holds a module for CPUs, not for v5e:2x4"):
        load(tmp_path, topology="v5e:2x4")


def test_of_a_host_module_no_topology_is_asked_for(tmp_path: Path) -> None:
    text = "HloModule jit_step\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    for name, host in (("cpu_after_optimizations.txt", True), ("after_optimizations.txt", False)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"module_0001.jit_step.{name}").write_text(text)
        drawn = draw(render(load(tmp_path / name), width=100), 100)
        assert ("--topology names the chip" in drawn) is not host
        assert ("for CPUs: no limit known" in drawn) is host
        assert ("hloscope analyze SCRIPT.py --topology NAME" in drawn) is host
