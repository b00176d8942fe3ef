"""The kernels stay as cheap as the benchmark says: bound by memory, without spills, no dearer than XLA when full."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Bundles per register of 1,024 numbers. Four vector slots a bundle allow no less than 2.13 (forward), 4.5 with the
# gate unpacked once, 4.75 as it is, twice (backward), and 1.38 (unsort).
# The compiler of jax before 0.12 gets less of the GLU's loops written out, lest it spill.
MOST_BUNDLES = (
    {"glu_rows": 2.5, "glu_rows_bwd": 4.9, "unsort_bwd_rows": 1.8}
    if jax.__version_info__ >= (0, 12)
    else {"glu_rows": 2.8, "glu_rows_bwd": 6.3, "unsort_bwd_rows": 1.8}
)


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("kernels_static")


@pytest.mark.tpu_compile
@pytest.mark.parametrize("target", ["v6e", "tpu7x"])
def test_kernels_are_bound_by_memory_and_do_not_spill(static: Any, target: str) -> None:
    chip = static.CHIPS[target]
    cases = [
        {"operation": operation, "by": by, "blocks": None}
        for operation in static.OPERATIONS
        for by in ("kernel", "valid_rows")
    ]
    costs: dict[tuple[str, str], Any] = {}
    for answer in importlib.import_module("_static").compiled(chip, cases):
        code = answer["code"]
        operation, by = answer["operation"], answer["by"]
        partly, full = (static.kernel_cost(answer, code, chip, rows) for rows in (static.VALID, static.ROWS))
        costs[operation, by] = partly
        assert static.spills(code) == 0, (operation, by)
        assert partly.bound == full.bound == "DMA", (operation, by)
        # Against the time of moving the valid rows once, at the efficiency that is achieved.
        moved = static.ROW_BYTES[operation] / chip.bandwidth / static.EFFICIENCY
        assert partly.overlap <= 1.02 * static.VALID * moved, (operation, by)
        assert full.overlap <= 1.01 * static.ROWS * moved, (operation, by)
    for operation in static.OPERATIONS:
        registers = static.VALID * static.WIDTHS[operation] / 1024
        assert costs[operation, "kernel"].compute * chip.clock <= MOST_BUNDLES[operation] * registers, (
            operation
        )
        assert costs[operation, "valid_rows"].overlap <= 1.05 * costs[operation, "kernel"].overlap


@pytest.mark.tpu_compile
def test_grouped_matmuls_in_parts_do_not_spill_and_do_not_stay_behind_xla(static: Any) -> None:
    ragged = importlib.import_module("ragged_static")
    chip = static.CHIPS["tpu7x"]
    shape = "K=N=2048 G=32"
    cases = [
        {"operation": operation, "by": by, "blocks": None, "shape": shape}
        for operation in ("dot", "contraction")
        for by in ("xla", "kernel")
    ]
    rows: dict[tuple[str, str], Any] = {}
    missing: set[tuple[str, str]] = set()
    for answer in importlib.import_module("_static").compiled(chip, cases):
        case = answer["operation"], answer["by"]
        if answer["code"] is None:
            missing.add(case)
        else:
            rows[case] = ragged.row_of(answer, chip)
    # libtpu of jax 0.10 lists no machine code for the contraction by XLA.
    assert missing <= (set() if jax.__version_info__ >= (0, 12) else {("contraction", "xla")})
    kernel = rows["dot", "kernel"].step
    assert kernel.part == 512
    assert (kernel.fills, kernel.spills) == (0, 0)
    assert kernel.always + kernel.multiply <= 1.01 * rows["dot", "kernel"].matrix
    for operation in {"dot", "contraction"} - {operation for operation, _ in missing}:
        assert rows[operation, "kernel"].total <= rows[operation, "xla"].total
