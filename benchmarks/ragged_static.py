"""Static cost of the grouped matmuls, Pallas against XLA's, from machine code and transfers: no TPU needed.

    python benchmarks/ragged_static.py                       # the table, at the published shapes
    python benchmarks/ragged_static.py --search dot --write  # parts of the product, kept in tiles.toml

Bundles (instruction words, one a cycle) are those of one visit of a group to a row tile over the whole width of the
result: of every step, of the branch that multiplies, and, for the contraction, of the branches that begin and end a
group. `matrix` is the matrix unit's time for the same, at its peak: where bundles are fewer, the unit stalls them.
Fills and spills are instructions that reload and put away vector registers, as listed; they are among the bundles.
Bytes and visits are those of one call at the shape's valid rows, its groups uneven. `ms` is
max(bytes / (0.75 x bandwidth), max(bundles, matrix) / clock) over the call, and for XLA also what it does around
its kernel: dead rows zeroed in a pass of their own, weights copied transposed. Nothing in it was measured on a TPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before jax is imported

import _static
from _static import CHIPS, EFFICIENCY, Chip

from hloscope.analysis.kernel_time import bundles_of
from hloscope_kernels.ragged_dot.benchmark import uneven_sizes
from hloscope_kernels.ragged_dot.shapes import QWEN35_397B_WI, QWEN35_397B_WO, TRITON_BEST, Shape
from hloscope_kernels.ragged_dot.tiles import TABLE, parts

SHAPES = {shape.name: shape for shape in (QWEN35_397B_WI, QWEN35_397B_WO, TRITON_BEST)}
OPERATIONS = ("dot", "transposed", "contraction")
PARTS = (512, 1024)
_ITEM = 2  # bfloat16
_TILING = re.compile(r'ragged_dot_tiling="(\d+),(\d+),(\d+)"')
_VMEM = re.compile(r'used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One implementation's grid: tile sizes and the bundles of one step, by when they run.

    `rows`, `inner`, `outer` as in `Tiles`; `part` None where it has no such loop. `always` runs in every step,
    `multiply` in those with rows of a group, `group` once per group, `zero` where a tile has dead rows.
    """

    rows: int
    inner: int
    outer: int
    part: int | None
    always: int
    multiply: int
    group: int
    zero: int
    fills: int
    spills: int
    vmem: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table: per visit over the whole width, and per call."""

    step: Step
    columns: int
    bundles: int
    matrix: float
    bytes_moved: float
    seconds: float
    around: float

    @property
    def total(self) -> float:
        """Seconds of the call with what XLA does around its kernel."""
        return self.seconds + self.around


def widths(shape: Shape, operation: str) -> tuple[int, int]:
    """The kernel's `inner` and `outer` whole: contracted and last width, or both widths of the contraction."""
    return (shape.n, shape.k) if operation == "transposed" else (shape.k, shape.n)


def step_of(answer: dict[str, Any], operation: str) -> Step:
    """The step of a compiled case. Branches of a kernel stand in the order in which it names them."""
    code, found = answer["code"], answer["branches"]
    (loop,) = code.loops
    body = bundles_of(loop)[0]
    always = body - sum(branch.bundles for branch in found)
    zero = multiply = group = 0
    if answer["by"] == "xla":
        # Its matmul runs outside of branches; those of a contraction clear a group's sums and write them.
        large = sorted(branch.bundles for branch in found)[-2:] if operation == "contraction" else []
        group = sum(large)
        always = body - group
    elif operation == "contraction":
        first, main, last = found
        multiply, group = main.bundles, first.bundles + last.bundles
    else:
        first, main = found
        zero, multiply = first.bundles, main.bundles
    used = answer["used"] or dict(zip(("rows", "inner", "outer"), tiling(answer["hlo"]), strict=True))
    return Step(
        rows=used["rows"],
        inner=used["inner"],
        outer=used["outer"],
        part=used.get("part"),
        always=always,
        multiply=multiply,
        group=group,
        zero=zero,
        fills=code.fills or 0,
        spills=code.spills or 0,
        vmem=vmem(answer["hlo"]),
    )


def tiling(hlo: str) -> tuple[int, int, int]:
    """The tile that XLA says its kernel has: rows, contracted width, last width; both widths of a contraction."""
    found = _TILING.search(hlo)
    assert found is not None, "XLA no longer names the tiles of its grouped matmul"
    return int(found[1]), int(found[2]), int(found[3])


def vmem(hlo: str) -> int:
    """VMEM of the largest kernel in bytes."""
    return max(
        int(size) for line in hlo.splitlines() if "tpu_custom_call" in line for size in _VMEM.findall(line)
    )


def visits(shape: Shape, tile: int) -> tuple[int, int, int]:
    """Visits of groups to row tiles, distinct tiles with rows, and tiles of the whole buffer."""
    ends = [0]
    for size in uneven_sizes(shape):
        ends.append(ends[-1] + size)
    seen = sum((end - 1) // tile - start // tile + 1 for start, end in pairwise(ends) if end > start)
    return seen, parts(ends[-1], tile), parts(shape.m, tile)


def row_of(answer: dict[str, Any], chip: Chip) -> Row:
    """The line of a compiled case."""
    shape, operation = SHAPES[answer["shape"]], answer["operation"]
    step = step_of(answer, operation)
    inner, outer = widths(shape, operation)
    seen, live, every = visits(shape, step.rows)
    across = parts(inner, step.inner) * parts(outer, step.outer)
    groups = shape.groups
    kernel = answer["by"] == "kernel"
    # Two cores share the columns.
    shared = min(chip.cores, across)
    macs = step.rows * step.inner * step.outer
    matrix = 2 * macs / (chip.peak / chip.cores) * chip.clock
    per_visit = max(step.always + step.multiply, matrix)
    cycles = seen * per_visit + groups * step.group
    if operation == "contraction":
        moved = live * step.rows * (inner * parts(outer, step.outer) + outer * parts(inner, step.inner))
        moved += groups * inner * outer
    else:
        dead_tiles = every - live if kernel else 0
        cycles += dead_tiles * (step.always + step.zero)
        weight_reads = groups if step.inner >= inner else seen
        moved = live * step.rows * inner * parts(outer, step.outer) + weight_reads * inner * outer
        moved += (every if kernel else live) * step.rows * outer
    cycles *= across / shared
    seconds = max(moved * _ITEM / (EFFICIENCY * chip.bandwidth), cycles / chip.clock)
    return Row(
        step=step,
        columns=across,
        bundles=across * (step.always + step.multiply),
        matrix=across * matrix,
        bytes_moved=moved * _ITEM,
        seconds=seconds,
        around=around(answer["hlo"], shape, operation) / (EFFICIENCY * chip.bandwidth),
    )


def around(hlo: str, shape: Shape, operation: str) -> float:
    """Bytes that XLA moves beside its kernel: a select over the whole result, and copies of all weights."""
    _, outer = widths(shape, operation)
    passes = re.findall(rf"= bf16\[{shape.m},{outer}\]\S* fusion\(", hlo)
    copies = re.findall(rf"= bf16\[{shape.groups},\d+,\d+\]\S* copy\(", hlo)
    return 2.0 * _ITEM * (len(passes) * shape.m * outer + len(copies) * shape.groups * shape.k * shape.n)


def lines(name: str, shapes: list[str]) -> Iterator[str]:
    """The table of a chip."""
    chip = CHIPS[name]
    cases = [
        {"operation": operation, "by": by, "blocks": None, "shape": shape}
        for shape in shapes
        for operation in OPERATIONS
        for by in ("xla", "kernel")
    ]
    yield f"\n{name}, bfloat16, libtpu {importlib.metadata.version('libtpu')}"
    yield (
        f"{'':18} {'':12} {'':6} {'tile':>18} {'part':>5} {'bundles':>8} {'matrix':>7} {'group':>6} {'fills':>6}"
        f" {'spills':>6} {'VMEM':>8} {'GB':>6} {'ms':>7} {'+':>6} {'x XLA':>6}"
    )
    plain = math.nan
    for answer in _static.compiled(chip, cases):
        head = f"{answer['shape']:18} {answer['operation']:12} {answer['by']:6}"
        if answer["code"] is None:
            yield f"{head} {answer['error']}"
            continue
        row = row_of(answer, chip)
        plain = row.total if answer["by"] == "xla" else plain
        step = row.step
        tile = f"{step.rows}/{step.inner}/{step.outer}"
        yield (
            f"{head} {tile:>18} {step.part or '':>5} {row.bundles:8} {row.matrix:7.0f} {step.group * row.columns:6}"
            f" {step.fills:6} {step.spills:6} {step.vmem / 2**20:5.1f}MiB {row.bytes_moved / 1e9:6.2f}"
            f" {row.seconds * 1e3:7.3f} {row.around * 1e3:6.3f} {plain / row.total:6.2f}"
        )


def candidates(shape: Shape, operation: str) -> Iterator[dict[str, int | None]]:
    """What the search changes of the tiles that the kernel takes by itself."""
    yield {"part": None}
    if operation != "contraction":
        yield from ({"part": part} for part in PARTS if part < widths(shape, operation)[1])


def search(name: str, operations: list[str], shapes: list[str]) -> list[dict[str, Any]]:
    """For each operation and shape the part that `best` takes."""
    chip = CHIPS[name]
    cases = [
        {"operation": operation, "by": "kernel", "blocks": blocks, "shape": shape.name}
        for shape in map(SHAPES.__getitem__, shapes)
        for operation in operations
        for blocks in candidates(shape, operation)
    ]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for answer in _static.compiled(chip, cases):
        if answer["code"] is None:
            print(f"{name} {answer['shape']} {answer['operation']} {answer['blocks']}: {answer['error']}")
            continue
        line = entry(answer, chip)
        print("  " + " ".join(f"{key}={value}" for key, value in line.items()), flush=True)
        found.setdefault((answer["operation"], answer["shape"]), []).append(line)
    return [best(lines) for lines in found.values()]


def best(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The line with the fewest spills and fills among those within a hundredth of the shortest step.

    The step and not the call decides: what few rows hide behind their weights counts where there are more.
    """

    def step(line: dict[str, Any]) -> int:
        return max(line["bundles"], line["matrix"])

    least = min(map(step, found))
    return min(
        (line for line in found if step(line) <= 1.01 * least),
        key=lambda line: (line["fills"] + line["spills"], step(line)),
    )


def entry(answer: dict[str, Any], chip: Chip) -> dict[str, Any]:
    """A line of `tiles.toml`: where it holds, what was chosen, and the figures that it rests on."""
    row, shape = row_of(answer, chip), SHAPES[answer["shape"]]
    step = row.step
    inner, outer = widths(shape, answer["operation"])
    found = {
        "rows": step.rows,
        "part": step.part or 0,
        "problem": [shape.m, inner, outer, shape.groups],
        "tile": [step.inner, step.outer],
        "bundles": step.always + step.multiply,
        "matrix": round(row.matrix / row.columns),
        "fills": step.fills,
        "spills": step.spills,
        "ms": round(row.seconds * 1e3, 3),
    }
    return _static.line_of(chip, answer["operation"], _ITEM, found)


def main() -> None:
    """Print the table, or search."""
    parser = argparse.ArgumentParser(description="Static cost of the grouped matmuls")
    parser.add_argument("--targets", nargs="+", choices=CHIPS, default=["v5e", "v5p", "v6e", "tpu7x"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--search", nargs="+", choices=OPERATIONS, help="compare parts")
    parser.add_argument("--write", action="store_true", help="keep what the search found in tiles.toml")
    arguments = parser.parse_args()
    for name in arguments.targets:
        if arguments.search:
            found = search(name, arguments.search, arguments.shapes)
            print(
                f"{name}: "
                + "; ".join(f"{f['operation']} {f['problem']}: {f['rows']}/{f['part']}" for f in found)
            )
            if arguments.write:
                _static.keep(TABLE, found)
        else:
            for line in lines(name, arguments.shapes):
                print(line, flush=True)


if __name__ == "__main__":
    main()
