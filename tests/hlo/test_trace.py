"""Reading a profiler's trace: operations by module and run, beside what jax's own reader finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builder import trace_bytes

from hloscope.errors import UserError
from hloscope.hlo.trace import read_trace

RUNS = [
    ("jit_step(12)", [("%fusion.3 = bf16[8]{0} fusion(%p), kind=kLoop", 2e-6), ("copy.1", 1e-6)]),
    ("jit_other(7)", [("fusion.3", 5e-6)]),
    ("jit_step(12)", [("%fusion.3 = bf16[8]{0} fusion(%p), kind=kLoop", 4e-6)]),
]

# A trace of this machine's CPU by jax itself, and what jax reads in a trace made for the test.
PROFILE = """
import jax, sys
with jax.profiler.trace(sys.argv[1]):
    jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8))).block_until_ready()
"""
READ = """
import jax, json, sys, warnings
warnings.simplefilter("ignore")
data = jax.profiler.ProfileData.from_file(sys.argv[1])
(plane,) = [p for p in data.planes if p.name == "/device:TPU:0"]
(line,) = [l for l in plane.lines if l.name == "XLA Ops"]
print(json.dumps([[e.name, e.duration_ns, e.start_ns] for e in line.events]))
"""


def test_times_are_by_module_and_operation(tmp_path: Path) -> None:
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(trace_bytes(RUNS))
    assert read_trace(path) == {
        "jit_step": {"fusion.3": pytest.approx([2e-6, 4e-6]), "copy.1": pytest.approx([1e-6])},
        "jit_other": {"fusion.3": pytest.approx([5e-6])},
    }


def test_every_device_counts_and_a_cut_run_does_not(tmp_path: Path) -> None:
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(trace_bytes(RUNS, devices=2, before=[("fusion.3", 9e-6)]))
    found = read_trace(path)
    assert found["jit_step"]["fusion.3"] == pytest.approx([2e-6, 4e-6] * 2)
    assert found["jit_other"]["fusion.3"] == pytest.approx([5e-6] * 2)


def test_jax_reads_the_same(tmp_path: Path) -> None:
    import json

    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(trace_bytes(RUNS))
    said = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True)
    theirs = sorted(seconds * 1e-9 for _, seconds, _ in json.loads(said.stdout))
    ours = sorted(t for times in read_trace(path).values() for seconds in times.values() for t in seconds)
    assert theirs == pytest.approx(ours)


def test_a_real_trace_without_a_tpu_says_what_it_has(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROFILE, tmp_path], capture_output=True, check=True)
    (path,) = tmp_path.rglob("*.xplane.pb")
    with pytest.raises(UserError, match=r"no operations of a TPU; its planes: .*/host:CPU"):
        read_trace(path)


@given(st.data())
def test_damage_is_an_error_or_a_trace(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(trace_bytes(RUNS))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("trace") / "vm.xplane.pb"
    path.write_bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        found = read_trace(path)
    except UserError:
        return
    assert all(time >= 0 for times in found.values() for seconds in times.values() for time in seconds)
