"""Modules out of a profiler's trace: what ran when it was made."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope import load
from hloscope.cli.main import main
from hloscope.errors import UserError
from hloscope.hlo import protos

SMALL = protos.HloProto(
    hlo_module=protos.HloModuleProto(
        name="jit_small",
        entry_computation_id=1,
        computations=[
            protos.Computation(
                id=1,
                name="e",
                root_id=1,
                instructions=[protos.Instruction(id=1, name="x", opcode="partition-id")],
            )
        ],
    )
).SerializeToString()
PROFILED = """
import sys
import jax, jax.numpy as jnp

step = jax.jit(lambda w, x: w - x.T @ x)
with jax.profiler.trace(sys.argv[1]):
    step(jnp.ones((64, 64)), jnp.ones((8, 64))).block_until_ready()
"""


def profile(place: Path, **modules: bytes) -> Path:
    """A trace that holds modules, and other statistics of them."""
    trace = protos.Trace(
        planes=[protos.TracePlane(name="/host:CPU"), protos.TracePlane(name="/host:metadata")]
    )
    plane = trace.planes[1]
    plane.stat_metadata[4].name = "Hlo Proto"
    plane.stat_metadata[5].name = "program_id"
    for number, (name, data) in enumerate(modules.items()):
        plane.event_metadata[number].name = f"{name}({number})"
        plane.event_metadata[number].stats.add(metadata_id=5, bytes_value=b"no module")
        plane.event_metadata[number].stats.add(metadata_id=4, bytes_value=data)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(trace.SerializeToString())
    return place


@pytest.fixture
def whole(dump_file: Callable[[str], Path]) -> bytes:
    return gzip.decompress(dump_file("oom").read_bytes())


def test_a_profile_and_its_log_folder(whole: bytes, tmp_path: Path) -> None:
    place = profile(tmp_path / "plugins/profile/run/host.xplane.pb", jit_small=SMALL, jit_step=whole)
    for target in (place, place.parent, tmp_path):
        report = load(target)
        assert (report.target.module, report.memory.arena_bytes is None) == ("jit_step", False)
        assert report.target.warnings[0] == (
            "took jit_step(1), by far the largest of 2 modules; --module takes another"
        )
        assert load(target, module="jit_small").target.module == "jit_small"
    packed = tmp_path / "packed.xplane.pb"
    packed.write_bytes(gzip.compress(place.read_bytes()))
    assert load(packed).target.module == "jit_step"


def test_which_module_and_which_run(whole: bytes, tmp_path: Path) -> None:
    place = profile(tmp_path / "1/host.xplane.pb", jit_step=whole, jit_eval=whole + b"\x12\x00")
    with pytest.raises(UserError, match=r"choose one with --module: jit_eval\(1\) \(.*\), jit_step\(0\)"):
        load(place)
    profile(tmp_path / "2/host.xplane.pb", jit_step=whole)
    with pytest.raises(UserError, match=r"has 2 profiles: name the folder of one: .*1, .*2"):
        load(tmp_path)
    # Hosts of one run compile the same.
    profile(tmp_path / "2/other.xplane.pb", jit_step=whole)
    assert load(tmp_path / "2").target.module == "jit_step"


def test_what_is_no_profile_or_holds_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a profile that holds no module"):
        load(profile(tmp_path / "host.xplane.pb"))
    (tmp_path / "host.xplane.pb").write_bytes(b"\xff\xff")
    with pytest.raises(UserError, match="is no profiler trace"):
        load(tmp_path)


def test_what_jax_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", PROFILED, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    file = tmp_path / "r.json"
    assert main(["analyze", str(tmp_path), "--module", "jit__lambda", "--json", str(file)]) == 0
    assert capsys.readouterr().out.startswith("jit__lambda")
    assert json.loads(file.read_text())["memory"]["argument_bytes"] == (64 * 64 + 8 * 64) * 4
