"""Where commands print: colour on a terminal only, NO_COLOR and FORCE_COLOR, pipes, and --quiet."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest
from rich.cells import cell_len

ROOT = Path(__file__).parents[2]
DENSE = str(ROOT / "tests" / "data" / "qwen3_0p6b_dense.hlo.pb.gz")
TEXT = str(ROOT / "tests" / "data" / "qwen3_0p6b_dense.txt.gz")
CHECK = ["check", DENSE, "--topology", "v6e:2x4", "--select", "HS203", "--fail-on", "never"]
COMMANDS = {
    "analyze": ["analyze", DENSE],
    "check": CHECK,
    "diff": ["diff", DENSE, TEXT],
    "explain": ["explain", "HS201"],
    "graph": ["graph", DENSE, "fusion.264"],
    "rules": ["rules"],
}
# Colours of text and of its background; bold and dim are none.
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|10\d)[;m]")
STEP = """
    import jax, jax.numpy as jnp
    import hloscope as hs

    @hs.step(topology="v5e:2x2")
    def tiny(topology):
        mesh = topology.mesh(data=topology.num_devices)
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
        rows = jax.ShapeDtypeStruct((256, 128), "float32", sharding=sharding)
        return hs.Step(lambda x: jnp.tanh(x @ x.T).sum(), args=(rows,))
"""


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    odd = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "CI")
    clean = {name: value for name, value in os.environ.items() if name not in odd}
    return clean | {"TERM": "xterm-256color", "PYTHONUTF8": "1", "JAX_PLATFORMS": "cpu", **changes}


def piped(arguments: Sequence[str], **changes: str) -> subprocess.CompletedProcess[str]:
    """A command whose output goes to another program."""
    return subprocess.run(
        [sys.executable, "-m", "hloscope.cli.main", *arguments],
        capture_output=True, encoding="utf-8", check=True, timeout=300, env=environment(changes),
    )  # fmt: skip


def on_a_terminal(arguments: Sequence[str], columns: int = 80, **changes: str) -> str:
    """What a command writes on a terminal: output and errors."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "hloscope.cli.main", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=environment(changes)
    ) as process:
        os.close(its)
        written = bytearray()
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # the terminal is closed: the command has ended
                break
            if not piece:
                break
            written += piece
        assert process.wait(60) == 0
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_gets_styles_and_lines_that_fit(name: str) -> None:
    for columns in (80, 120):
        written = on_a_terminal(COMMANDS[name], columns)
        assert "\x1b[" in written
        assert name == "rules" or COLOUR.search(written)
        plain = re.sub(r"\x1b\[[\d;]*m", "", written)
        assert max(cell_len(line) for line in plain.splitlines()) <= columns


@pytest.mark.parametrize("name", COMMANDS)
def test_no_color_takes_the_colour_off(name: str) -> None:
    assert not COLOUR.search(on_a_terminal(COMMANDS[name], NO_COLOR="1"))


@pytest.mark.parametrize("name", COMMANDS)
def test_another_program_gets_plain_text(name: str) -> None:
    done = piped(COMMANDS[name])
    assert done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_colour_can_be_forced_and_a_dumb_terminal_gets_none() -> None:
    assert COLOUR.search(piped(COMMANDS["diff"], FORCE_COLOR="1").stdout)
    assert "\x1b" not in on_a_terminal(COMMANDS["diff"], TERM="dumb")


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A step that compiles in seconds, compiled once for all of these tests."""
    file = tmp_path_factory.mktemp("step") / "tiny.py"
    file.write_text(dedent(STEP))
    piped(["analyze", str(file)])
    return str(file)


def commands_of(step: str) -> list[list[str]]:
    return [
        ["analyze", step],
        ["check", step, "--fail-on", "never"],
        ["diff", step, step],
        ["apply-rules", step, "--dry-run"],
    ]


@pytest.mark.tpu_compile
@pytest.mark.parametrize("number", range(4))
def test_stages_are_told_line_by_line_and_not_at_all_with_quiet(number: int, step: str) -> None:
    command = commands_of(step)[number]
    told = piped(command)
    assert re.search(r"^\[ +\d+\.\d s\] (lowering|compiled before)", told.stderr, re.MULTILINE)
    quiet = piped([*command, "--quiet"])
    assert quiet.stderr == ""
    assert quiet.stdout == told.stdout
    assert "\x1b" not in told.stdout + told.stderr


@pytest.mark.tpu_compile
def test_a_terminal_sees_one_live_line_with_the_time(step: str) -> None:
    written = on_a_terminal(["analyze", step, "--fresh"])
    assert re.search(r"compiling\S* *\S*\d:\d\d:\d\d", re.sub(r"\x1b\[[\d;]*m", "", written))
    assert "compiling" not in on_a_terminal(["analyze", step, "--quiet", "--fresh"])
