"""A whole process, timed: what a user waits for, and the memory that it takes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: seconds by the clock and of CPU (user and system), the largest resident set in bytes."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(
    command: Sequence[str], *, output: str | Path = os.devnull, environment: Mapping[str, str] = {}
) -> Run:
    """Run a command to its end. Raises RuntimeError, with its errors, if it fails."""
    # An installed package has its bytecode: a tree that may not keep any would be compiled in every run.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    errors = Path(f"{output}.errors") if output != os.devnull else Path(os.devnull)
    with open(output, "wb") as out, open(errors, "wb") as err:
        begin = time.perf_counter()
        process = os.posix_spawnp(
            command[0],
            list(command),
            {**kept, **environment},
            file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)],
        )
        _, status, usage = os.wait4(process, 0)
        seconds = time.perf_counter() - begin
    if status:
        told = errors.read_text(errors="replace")[-2000:] if errors.is_file() else ""
        raise RuntimeError(f"{' '.join(command)} failed with {os.waitstatus_to_exitcode(status)}\n{told}")
    return Run(
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    )


def best(command: Sequence[str], rounds: int, *, output: str | Path = os.devnull) -> Run:
    """The quickest of several runs: the one that other work on the machine disturbed least."""
    return min((run(command, output=output) for _ in range(rounds)), key=lambda r: r.seconds)


def analyze(target: str | Path) -> list[str]:
    """The command that analyzes a target."""
    return [sys.executable, "-m", "hloscope", "analyze", str(target)]


def machine() -> str:
    """A line on the machine and how busy it is: figures of a busy machine say little."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs, load {load:.1f}, Python {sys.version.split()[0]}"
