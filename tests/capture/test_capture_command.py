"""`hloscope capture -- CMD`: the command runs as without it, and what it compiled is reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from hloscope.capture.command import dump_folder, dumping
from hloscope.cli.main import main
from hloscope.errors import UserError

SCHEMA = json.loads(resources.files("hloscope.report").joinpath("schema.json").read_text())
STEP = """
import os, subprocess, sys
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    return (x @ x.T).sum()

print("sum", float(step(jnp.ones((64, 64)))), sys.stdin.readline().strip())
print("a word on standard error", file=sys.stderr)
"""
TWICE = """
if "again" in sys.argv:
    null = subprocess.DEVNULL
    subprocess.run([sys.executable, __file__], stdin=null, stdout=null, stderr=null)
"""
AOT = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
sharding = NamedSharding(Mesh(np.array(devices), ("data",)), P("data"))

def train_step(x):
    return jnp.sin(x @ x.T).sum()

def huge_step(x):
    y = jnp.sin(x @ x.T)
    return (y @ y).sum()

for step, rows in ((train_step, 1024), (huge_step, 200_000)):
    jax.jit(step).lower(jax.ShapeDtypeStruct((rows, 1024), jnp.bfloat16, sharding=sharding)).compile()
"""

Process = subprocess.CompletedProcess[str]


def capture(*arguments: object, stdin: str = "", **environment: str) -> Process:
    return subprocess.run(
        [sys.executable, "-m", "hloscope.cli.main", "capture", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120", **environment},
        check=False,
        timeout=300,
    )


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


def test_the_command_runs_as_ever_and_is_reported(script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script(STEP + TWICE + "sys.exit(5)")
    file, folder = tmp_path / "report.json", tmp_path / "dump"
    command = [sys.executable, str(path), "again", "--json"]
    done = capture("--dir", folder, "--json", file, "--", *command, stdin="hello\n")
    assert (done.returncode, done.stdout) == (5, "sum 262144.0 hello\n")
    assert done.stderr.count("a word on standard error\n") == 1
    report = json.loads(file.read_text())
    captured = jsonschema.Draft202012Validator(SCHEMA).evolve(schema=SCHEMA["$defs"]["capture"])  # pyright: ignore
    captured.validate(report)  # pyright: ignore
    assert (report["command"], report["exit_code"], report["folder"]) == (command, 5, str(folder))
    # Largest first; the child, which fails, compiled the same.
    (step, *_) = report["modules"]
    assert (step["module"], step["compiles"], step["error"]) == ("jit_step", 2, None)
    assert step["report"]["target"]["platform"] == "cpu"
    assert step["report"]["memory"]["argument_bytes"] == 64 * 64 * 4
    assert re.search(r"^  jit_step +cpu +2 ", done.stderr, re.MULTILINE)
    assert "\njit_step · cpu, chip unknown, 1 device" in done.stderr
    # Only what this run compiled counts, in a folder that has more in it.
    done = capture("--dir", folder, "--", "true")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the command compiled nothing" in done.stderr


def test_a_command_that_dies_is_reported_all_the_same(script: Callable[[str], Path], tmp_path: Path) -> None:
    path = script(STEP + "sys.stdout.flush(); os.abort()")
    folder = tmp_path / "own"
    flags = f"--xla_dump_to={folder} --xla_cpu_enable_fast_math=false"
    done = capture("--module", "^jit_st", "--", sys.executable, path, XLA_FLAGS=flags)
    assert done.returncode == 128 + signal.SIGABRT
    assert "The command compiled 1 module\n" in done.stderr
    assert f"The dump is in {folder}: hloscope analyze takes it\n" in done.stderr
    assert list(folder.glob("*jit_step*after_optimizations.hlo.pb"))
    done = capture("--module", "nope", "--", sys.executable, path, XLA_FLAGS=flags)
    assert re.search(r"no module with a name like 'nope', but .*\bjit_step\b.*; the dump is in ", done.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_whole_command(number: signal.Signals, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    child = (
        f"trap 'exit 7' INT TERM; sleep 600 2>/dev/null & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"
    )
    command = [sys.executable, "-m", "hloscope.cli.main", "capture", "--", "sh", "-c", child]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_for(pids.exists)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7
    assert said.startswith("hloscope: the command compiled nothing")
    if number == signal.SIGTERM:  # a shell's background job ignores SIGINT
        wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))
    else:
        os.kill(int(pids.read_text().split()[1]), signal.SIGKILL)


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip() not in ("",) and not state.stdout.startswith("Z")


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_flags_of_the_user_stay(tmp_path: Path) -> None:
    given = {"XLA_FLAGS": "--xla_dump_to=/a --xla_dump_hlo_as_text=false", "X": "1"}
    made = dumping(given, Path("/b"))
    assert made["X"] == "1"
    assert made["XLA_FLAGS"].split() == [
        "--xla_dump_to=/a",
        "--xla_dump_hlo_as_text=false",
        "--xla_dump_hlo_as_proto=true",
        "--xla_dump_include_timestamp=true",
    ]
    assert dump_folder(given) == Path("/a")
    assert dump_folder({}) is None
    assert dumping({}, Path("/b c"))["XLA_FLAGS"].startswith('"--xla_dump_to=/b c" ')
    (tmp_path / "flags").write_text("--xla_dump_to=/c\n--xla_x=1\n")
    assert dump_folder({"XLA_FLAGS": str(tmp_path / "flags")}) == Path("/c")
    assert (
        dumping({"JAX_ENABLE_COMPILATION_CACHE": "true"}, Path("/b"))["JAX_ENABLE_COMPILATION_CACHE"]
        == "true"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--xla_dump_to=-", "is no folder: leave it out"),
        ("nowhere.txt", "names a file of flags, nowhere.txt: No such file or directory"),
        ("--xla_dump_to='/a", "XLA_FLAGS cannot be read: No closing quotation"),
    ],
)
def test_flags_that_cannot_be(flags: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        dump_folder({"XLA_FLAGS": flags})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--"], "Missing argument"),
        (["--", "no-such-command"], "cannot run no-such-command: No such file or directory"),
        (["--json", "-", "--", "true"], "standard output is the command's; give a file"),
        (["--dir", "/dev/null", "--", "true"], "--dir /dev/null is no folder to dump into: File exists"),
        (["--module", "(", "--", "true"], "--module (: no regular expression"),
    ],
)
def test_wrong_use(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_two_folders_to_dump_into(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/a")
    assert main(["capture", "--dir", "/b", "--", "true"]) == 2
    assert (
        capsys.readouterr().err == "error: XLA_FLAGS dumps into /a already: leave out --dir, or that flag\n"
    )


@pytest.mark.tpu_compile
def test_a_script_that_compiles_for_tpus(script: Callable[[str], Path], tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = capture(
        "--json",
        file,
        "--",
        sys.executable,
        script(AOT),
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )
    assert done.returncode == 1
    assert "RESOURCE_EXHAUSTED" in done.stderr
    assert re.search(r"^  jit_huge_step +v5e .* the compile failed$", done.stderr, re.MULTILINE)
    modules = {m["module"]: m["report"] for m in json.loads(file.read_text())["modules"]}
    fits, huge = modules["jit_train_step"], modules["jit_huge_step"]
    assert (fits["target"]["status"], fits["target"]["topology"]) == ("ok", "v5e:2x4")
    assert huge["target"]["status"] == "failed"
    assert huge["overrun"]["limit_bytes"] == round(15.75 * 2**30)
    assert huge["overrun"]["used_bytes"] > 60 << 30
