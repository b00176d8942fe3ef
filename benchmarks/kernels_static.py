"""Static cost of the row kernels against XLA's full-buffer fusions, from machine code: no TPU needed.

    python benchmarks/kernels_static.py                    # the table
    python benchmarks/kernels_static.py --search glu_rows  # block sizes for one operation

Each program is compiled ahead of time at the published shape (225,280 rows). Bytes come from the
windows that are transferred, bundles (one a cycle) from the final machine code, trips from the grid.

Two models:
- `overlap`: max(bytes / (0.75 x bandwidth), bundles / clock), as transfers and arithmetic overlap in a
  pipelined loop; kernels also pay their first fetch and last write, which nothing hides. 0.75 was
  fitted to published v6e times and is uncalibrated elsewhere. Where both sides are bound by memory the
  ratio cannot pass full rows / visited rows, 1.78 at 56 %.
- `serial`: bytes / bandwidth + bundles / clock, nothing fitted: what `hloscope kernel` takes, as it comes within
  8 % of the published v6e times of XLA's fusions, and of copies on tpu7x (docs/kernel_analysis.md).
"""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _static
from _static import CHIPS, EFFICIENCY, Chip, spills

import hloscope_kernels
from hloscope.analysis.kernel_time import bundles_of
from hloscope.analysis.machine_code import MachineCode

ROWS, VALID = 225_280, 126_156
OPERATIONS = ("glu_rows", "glu_rows_bwd", "unsort_bwd_rows")
# Bytes that a row moves: columns read and written, bfloat16, and the float32 numbers per row.
ROW_BYTES = {
    "glu_rows": 2 * (2_048 + 1_024),
    "glu_rows_bwd": 2 * (2_048 + 1_024 + 2_048),
    "unsort_bwd_rows": 2 * 3 * 4_096 + 2 * 4,
}
COLUMNS = {"unsort_bwd_rows": 4_096}
WIDTHS = {"glu_rows": 1_024, "glu_rows_bwd": 1_024, "unsort_bwd_rows": 4_096}
# Published times on v6e in ms: XLA at the full buffer, the published kernel at 126,156 valid rows.
PUBLISHED = {"glu_rows": (1.08, 0.61), "glu_rows_bwd": (1.92, 1.02), "unsort_bwd_rows": (4.71, 2.61)}
AIMS = {"glu_rows": 1.75, "glu_rows_bwd": 1.85, "unsort_bwd_rows": 1.80}
SEARCH: dict[str, list[dict[str, int]]] = {
    "glu_rows": [
        {"rows": rows, "tile_rows": tile_rows, "tile_columns": columns}
        for rows in (512, 1024)
        for tile_rows in (128, 256, 512)
        for columns in (128, 256, 512)
    ],
    "glu_rows_bwd": [
        {"rows": rows, "tile_rows": tile_rows, "tile_columns": columns}
        for rows in (256, 512, 768, 1024)
        for tile_rows in (64, 128, 256)
        for columns in (128, 256)
    ],
    "unsort_bwd_rows": [
        {"rows": rows, "columns": columns, "tile_rows": tile_rows}
        for rows, columns in ((128, 4096), (256, 4096), (512, 2048), (512, 4096), (1024, 1024), (1024, 2048))
        for tile_rows in (16, 32, 64)
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one call."""

    transfer: float
    compute: float
    unhidden: float

    @property
    def overlap(self) -> float:
        """Transfers and arithmetic at the same time, at the efficiency that is achieved."""
        return max(self.transfer / EFFICIENCY, self.compute) + self.unhidden / EFFICIENCY

    @property
    def serial(self) -> float:
        """One after the other, transfers at full bandwidth."""
        return self.transfer + self.compute + self.unhidden

    @property
    def bound(self) -> str:
        """Which term of `overlap` is the larger."""
        return "DMA" if self.transfer / EFFICIENCY >= self.compute else "bundles"


def xla_cost(answer: dict[str, Any], code: MachineCode, chip: Chip) -> Cost:
    """A fusion's trips are in its window config; what its loop's exit test names counts pipeline stages too."""
    bounds = re.findall(r'"iteration_bounds":\[([^\]]*)\]', answer["hlo"])
    trips = max(math.prod(int(trip) for trip in re.findall(r"\d+", bound)) for bound in bounds)
    (loop,) = code.loops
    bundles = trips * bundles_of(loop)[0] + code.outside.bundles
    return Cost(
        transfer=ROWS * ROW_BYTES[answer["operation"]] / chip.bandwidth,
        compute=bundles / chip.clock,
        unhidden=0.0,
    )


def parts_of_a_row(operation: str, blocks: dict[str, int]) -> int:
    """Column blocks."""
    return math.ceil(COLUMNS.get(operation, 1) / blocks.get("columns", COLUMNS.get(operation, 1)))


def step_bytes(operation: str, blocks: dict[str, int]) -> float:
    """Bytes that one grid step reads and writes."""
    return blocks["rows"] * ROW_BYTES[operation] / parts_of_a_row(operation, blocks)


def kernel_cost(answer: dict[str, Any], code: MachineCode, chip: Chip, valid: int) -> Cost:
    """Per grid step its own bundles and the tiles'; loops that zero the tail of limit's block run once in a call."""
    blocks, operation = answer["used"], answer["operation"]
    row_blocks = math.ceil(valid / blocks["rows"])
    column_blocks = parts_of_a_row(operation, blocks)
    steps = row_blocks * column_blocks
    (grid_loop,) = code.loops
    # Cores that run one program share the steps.
    bundles = steps / chip.cores * bundles_of(grid_loop)[0] + code.outside.bundles
    moved = step_bytes(operation, blocks)
    return Cost(
        transfer=steps * moved / chip.bandwidth,
        compute=bundles / chip.clock,
        unhidden=moved / chip.bandwidth,
    )


def print_table(name: str, chip: Chip) -> None:
    """Every operation: XLA, the kernel and what `valid_rows` makes, at 56 % and at a full buffer."""
    cases = [
        {"operation": operation, "by": by, "blocks": None}
        for operation in OPERATIONS
        for by in ("xla", "kernel", "valid_rows")
    ]
    answers = _static.compiled(chip, cases)
    print(f"\n{name}: {ROWS:,} rows, {VALID:,} valid; times in ms")
    print(f"{'':28}{'spills':>7}{'DMA':>8}{'bundles':>9}{'bound':>9}{'overlap':>9}{'x XLA':>7}", end="")
    print(f"{'serial':>8}{'x XLA':>7}{'full':>7}  blocks")
    plain = Cost(transfer=0, compute=0, unhidden=0)
    for answer in answers:
        code = answer["code"]
        if answer["by"] == "xla":
            plain = cost = full = xla_cost(answer, code, chip)
        else:
            cost = kernel_cost(answer, code, chip, VALID)
            full = kernel_cost(answer, code, chip, ROWS)
        used: dict[str, int] = answer["used"] or {}
        print(
            f"{answer['operation']:17}{answer['by']:11}{spills(code):7}"
            f"{cost.transfer / EFFICIENCY * 1e3:8.3f}{cost.compute * 1e3:9.3f}{cost.bound:>9}"
            f"{cost.overlap * 1e3:9.3f}{plain.overlap / cost.overlap:7.2f}"
            f"{cost.serial * 1e3:8.3f}{plain.serial / cost.serial:7.2f}"
            f"{full.overlap / plain.overlap:7.3f}  {list(used.values()) or ''}"
        )
        if name == "v6e" and answer["by"] == "kernel":
            xla, kernel = PUBLISHED[answer["operation"]]
            print(
                f"{'':17}published: XLA {xla} ms, kernel {kernel} ms ({xla / kernel:.2f}x); this kernel by "
                f"`overlap` against XLA's published time {xla / cost.overlap / 1e3:.2f}x; "
                f"aim {AIMS[answer['operation']]}x"
            )


def search(operation: str, chip: Chip) -> dict[str, Any]:
    """Every candidate, best first, those that spill last; returns the first as a line of the operation's table."""
    cases = [{"operation": operation, "by": "kernel", "blocks": blocks} for blocks in SEARCH[operation]]
    found = [
        answer
        for answer in _static.compiled(chip, cases)
        if answer["code"] is not None and 2 * step_bytes(operation, answer["used"]) <= answer["window_bytes"]
    ]
    costs = [(spills(a["code"]), kernel_cost(a, a["code"], chip, VALID), a["used"]) for a in found]
    # Within a hundredth of the least time the fewest bundles win: how much transfers hide is a model's word.
    least = min((cost.overlap for spilt, cost, _ in costs if not spilt), default=math.inf)
    costs.sort(key=lambda row: (row[0] > 0, row[1].overlap > 1.01 * least, row[1].compute))
    print(f"\n{chip.name} {operation}: overlap, serial and bundles in ms")
    for spilt, cost, blocks in costs:
        print(
            f"  {cost.overlap * 1e3:7.3f} {cost.serial * 1e3:7.3f} {cost.compute * 1e3:7.3f}"
            f"  spills {spilt:4}  {blocks}"
        )
    spilt, cost, blocks = costs[0]
    figures = {
        "problem": [ROWS, VALID, WIDTHS[operation]],
        "spills": spilt,
        "overlap_ms": round(cost.overlap * 1e3, 3),
        "bundles_ms": round(cost.compute * 1e3, 3),
    }
    return _static.line_of(chip, operation, 2, blocks | figures)


def main() -> None:
    """Print the table, or a search."""
    parser = argparse.ArgumentParser(description="Static cost of the row kernels")
    parser.add_argument("--targets", nargs="+", choices=CHIPS, default=["v6e", "tpu7x"])
    parser.add_argument("--search", nargs="+", choices=OPERATIONS, help="compare block sizes")
    parser.add_argument("--write", action="store_true", help="keep what the search found in blocks.toml")
    arguments = parser.parse_args()
    for name in arguments.targets:
        for operation in arguments.search or []:
            found = search(operation, CHIPS[name])
            if arguments.write:
                folder = operation.removesuffix("_bwd") if operation.startswith("glu") else operation
                _static.keep(Path(*hloscope_kernels.__path__, folder, "blocks.toml"), [found])
        if not arguments.search:
            print_table(name, CHIPS[name])


if __name__ == "__main__":
    main()
