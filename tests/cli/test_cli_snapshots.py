"""What commands print, whole, on a terminal of 80 columns: tests/golden/cli_*.txt, for review.

`UPDATE_GOLDEN=1` writes them anew. analyze and apply-rules have theirs beside their own tests. Of kernel, whose
figures are the compiler's, digits are masked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import pytest
from rich.cells import cell_len

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
DENSE = "tests/data/qwen3_0p6b_dense.hlo.pb.gz"
BIG = "tests/data/qwen3_30b.hlo.pb.gz"

COMMANDS = {
    "check": (1, ["check", DENSE, "--topology", "v6e:2x4", "--select", "HS203", "--budget", "peak=1GiB"]),
    "diff": (0, ["diff", DENSE, "tests/data/qwen3_0p6b_dense.txt.gz"]),
    "explain": (0, ["explain", "HS201"]),
    "graph": (0, ["graph", DENSE, "fusion.264", "--hops", "2"]),
    "topologies": (0, ["topologies"]),
    "new_rule": (0, ["new-rule", "narrow-thing", "--code", "XX901"]),
    "export": (0, ["export", BIG, "--hlo", "module.txt"]),
    "calibrate": (0, ["calibrate", DENSE, "--times", "times.csv", "--topology", "v6e:2x4"]),
    "rules": (0, ["rules"]),
    # A command that "compiles": it leaves a module where hloscope looks for what the compiler dumped.
    "capture": (
        0,
        [
            "capture",
            "--dir",
            "dump",
            "--",
            "cp",
            DENSE,
            "dump/module_0001.jit_train_step.after_optimizations.hlo.pb",
        ],
    ),
    "error": (2, ["graph", DENSE, "no_such_instruction"]),
}


def run(
    arguments: Sequence[str], folder: Path, columns: int = 80, **more: str
) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, with nothing of the environment that changes what it prints."""
    placed = [str(ROOT / a) if a.startswith("tests/") else a for a in arguments]
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "hloscope.cli.main", *placed],
        capture_output=True, encoding="utf-8", cwd=folder, check=False, timeout=300,
        env=clean | {"COLUMNS": str(columns), "PYTHONUTF8": "1", **more},
    )  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints(name: str, tmp_path: Path) -> None:
    code, arguments = COMMANDS[name]
    (tmp_path / "times.csv").write_text(
        "name,seconds\nsoftmax,0.0012\noptimizer,0.0007\ncast,0.0003\nadd,0.0005\n"
    )
    done = run(arguments, tmp_path)
    text = f"$ hloscope {' '.join(arguments)}\n{done.stdout}{done.stderr}[exit code {done.returncode}]\n"
    text = text.replace(f"{ROOT}/", "").replace(str(tmp_path), "…")
    path = GOLDEN / f"cli_{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert done.returncode == code
    assert text == path.read_text(encoding="utf-8")
    assert "\x1b" not in text
    # Lines of errors and notes are the terminal's to wrap.
    assert name == "new_rule" or max(map(cell_len, done.stdout.splitlines()), default=0) <= 80


@pytest.mark.tpu_compile
def test_what_kernel_prints(tmp_path: Path) -> None:
    arguments = ["kernel", "tests/steps/kernels.py:double", "--topology", "v6e:2x2", "--quiet"]
    done = run(arguments, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    # Figures, and with them where lines break, are the compiler's.
    words = " ".join(re.sub(r"\d[\d,.]*", "#", done.stdout.replace(f"{ROOT}/", "")).split())
    text = f"$ hloscope {' '.join(arguments)}\n{fill(words, 100, break_on_hyphens=False)}\n"
    path = GOLDEN / "cli_kernel.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["check", "diff"])
def test_a_wide_terminal_is_not_overrun(name: str, tmp_path: Path) -> None:
    widest = max(map(cell_len, run(COMMANDS[name][1], tmp_path, 200).stdout.splitlines()))
    assert 80 < widest <= 200


def test_memory_over_the_schedule_is_a_line(tmp_path: Path) -> None:
    out = run(["analyze", DENSE], tmp_path).stdout
    (curve,) = (row for row in out.splitlines() if re.fullmatch(r" +[▁-█]{20,}", row))
    assert "█" in curve
    assert cell_len(curve) <= 80


@pytest.mark.parametrize(
    ("shell", "asked", "offered"),
    [
        ("bash", {"COMP_WORDS": "hloscope ana", "COMP_CWORD": "1"}, ["analyze"]),
        ("bash", {"COMP_WORDS": "hloscope explain HS20", "COMP_CWORD": "2"}, ["HS201", "HS202", "HS203"]),
        ("bash", {"COMP_WORDS": "hloscope analyze x --topology tpu7", "COMP_CWORD": "4"}, ["tpu7x"]),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "hloscope explain HS20"}, ["HS201", "transposed-reduce-scatter"]),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "hloscope ana", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            ["analyze"],
        ),
    ],
)
def test_the_shell_is_told_what_may_follow(
    shell: str, asked: dict[str, str], offered: list[str], tmp_path: Path
) -> None:
    done = run([], tmp_path, _HLOSCOPE_COMPLETE=f"complete_{shell}", **asked)
    assert done.returncode == 0
    assert done.stderr == ""
    assert [word for word in offered if word not in done.stdout] == []


def test_completion_is_installed_where_the_user_says(tmp_path: Path) -> None:
    done = run(["--install-completion", "bash"], tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0
    assert "complete_bash" in next((tmp_path / ".bash_completions").iterdir()).read_text()
