"""What the static benchmarks share: chips, compiling in a process of its own, and reading its machine code."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloscope.analysis.kernel_time import bundles_of
from hloscope.analysis.machine_code import MachineCode, Stretch, read_machine_code
from hloscope.capture.kernels import DUMP_FLAGS
from hloscope.devices import chips

WORKER = Path(__file__).with_name("_static_worker.py")
# Share of the bandwidth that is reached: fitted to published v6e times. A copy on tpu7x reaches 0.87 (docs/costs.md).
EFFICIENCY = 0.75
_TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s.*?:\s*[> ]*\{")
_BRANCH = re.compile(r"sbr\.rel \([^)]*\) target = \$region(\d+)")
_JOIN = re.compile(r"Start/End empty region (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One device: clock in Hz, HBM bytes/s, bfloat16 operations/s; sources in hloscope's `devices.toml`."""

    name: str
    topology: str
    cores: int
    clock: float
    bandwidth: float
    peak: float


def _chip(name: str) -> Chip:
    known = chips()[name]
    assert known.bf16_per_second is not None
    return Chip(
        name=name,
        topology=_TOPOLOGIES[name],
        cores=known.cores,
        clock=known.clock_hz,
        bandwidth=known.hbm_bytes_per_second,
        peak=known.bf16_per_second,
    )


GENERATIONS = {"v4": 4, "v5e": 5, "v5p": 5, "v6e": 6, "tpu7x": 7}
CHIPS = {name: _chip(name) for name in _TOPOLOGIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A part of a program that may be skipped (`pl.when`): bundles of one run, and instructions that move vector
    registers from and to VMEM in it, as listed."""

    bundles: int
    fills: int
    spills: int


def compiled(chip: Chip, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worker's answers to the cases, each with `code`, the machine code of its largest program (None if the case
    did not compile), and `branches`, those of its body in program order."""
    with tempfile.TemporaryDirectory() as folder:
        answers = compile_cases(chip, cases, Path(folder))
        for answer in answers:
            file = largest_program(answer)
            answer["code"] = None if file is None else read_listing(file)
            answer["branches"] = [] if file is None else branches(file)
    return answers


def compile_cases(chip: Chip, cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Compile the cases in a process of its own, with the machine code dumped into `folder`."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": " ".join(DUMP_FLAGS).format(folder=folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, str(WORKER), chip.topology, str(folder)],
        input="\n".join(map(json.dumps, cases)),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        sys.exit(run.stderr)
    lines = run.stdout.splitlines()
    return [json.loads(line.removeprefix("CASE ")) for line in lines if line.startswith("CASE ")]


def largest_program(answer: dict[str, Any]) -> Path | None:
    """The longest listing of a case: around the program there are only scalars, masks and a count of blocks."""
    found = [(Path(file), read_listing(Path(file))) for file in answer["files"]]
    sized = [(_written(code.outside), file) for file, code in found if code is not None]
    return max(sized)[1] if sized else None


def _written(stretch: Stretch) -> int:
    """Bundles as they are listed, those of each loop once: how often a grid runs is not in the code."""
    return stretch.bundles + sum(map(_written, stretch.inner))


def program_of(answer: dict[str, Any]) -> MachineCode:
    """The machine code of `largest_program`."""
    file = largest_program(answer)
    code = None if file is None else read_listing(file)
    assert code is not None, answer["error"]
    return code


def read_listing(bundles: Path) -> MachineCode | None:
    """The machine code in a `*-final_bundles.txt`; the utilization table lies beside it."""
    return read_machine_code(bundles.read_text(errors="replace"), _table(bundles).read_text(errors="replace"))


def spills(code: MachineCode) -> int:
    """Instructions that reload or put away vector registers."""
    return (code.fills or 0) + (code.spills or 0)


def branches(bundles: Path) -> list[Branch]:
    """What a program may skip within a grid step, in program order: the innermost branches.

    The compiler jumps to a region's end where a predicate says so, and marks that place as an empty region.
    """
    lines = [line for line in bundles.read_text(errors="replace").splitlines() if _BUNDLE.match(line)]
    head, mark, body = _table(bundles).read_text(errors="replace").partition("== UTILIZATION:")
    rows = [row for row in body.splitlines() if row.strip()]
    opened: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(lines):
        spans += [(opened.pop(region), number) for region in _JOIN.findall(line) if region in opened]
        opened |= dict.fromkeys(_BRANCH.findall(line), number + 1)
    found: list[Branch] = []
    for start, end in _own(spans):
        table = "\n".join([head + mark, *rows[start:end]])
        code = read_machine_code("\n".join(lines[start:end]), table)
        if code is not None:
            # The grid's loop is cut to a part of its body, which runs once.
            bundled = code.outside.bundles + sum(
                bundles_of(loop)[0] * (1 if loop.depth == 1 else loop.trips or 0) for loop in code.loops
            )
            found.append(Branch(bundles=bundled, fills=code.fills or 0, spills=code.spills or 0))
    return found


def _own(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The innermost branches: what holds others guards a step as a whole."""
    return sorted(
        span
        for span in spans
        if not any(span[0] <= other[0] and other[1] <= span[1] for other in spans if other != span)
    )


def _table(bundles: Path) -> Path:
    (table,) = bundles.parent.glob(f"{bundles.name.split('-02-')[0]}-00-final_hlo-static*")
    return table


def line_of(chip: Chip, operation: str, itemsize: int, found: dict[str, Any]) -> dict[str, Any]:
    """A line of a table that a search keeps: for whom it is, what was found, and what it rests on."""
    of = {
        "generation": GENERATIONS[chip.name],
        "cores": chip.cores,
        "operation": operation,
        "itemsize": itemsize,
    }
    return of | found | {"chip": chip.name, "libtpu": importlib.metadata.version("libtpu")}


def keep(table: Path, found: list[dict[str, Any]]) -> None:
    """Put lines into a table in the place of those for the same chips, operations and problems."""
    text = table.read_text(encoding="utf-8")
    replaced = [_key(line) for line in found]
    old = [line for line in tomllib.loads(text)["found"] if _key(line) not in replaced]
    lines = sorted(old + found, key=_key)
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    table.write_text(head + "found = [\n" + "".join(f"  {_inline(line)},\n" for line in lines) + "]\n")


def _key(line: dict[str, Any]) -> tuple[str, int, list[int]]:
    return line["operation"], list(CHIPS).index(line["chip"]), line["problem"]


def _inline(line: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in line.items()) + " }"
