"""The kernels stay as cheap as the benchmark says: bound by memory, without spills, no dearer than XLA when full."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def static(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kernels_static

    return kernels_static


@pytest.mark.tpu_compile
@pytest.mark.parametrize("target", ["v6e", "tpu7x"])
def test_kernels_are_bound_by_memory_and_do_not_spill(static, target, tmp_path):
    chip = static.CHIPS[target]
    cases = [
        {"operation": operation, "by": by, "blocks": None}
        for operation in static.OPERATIONS
        for by in ("kernel", "valid_rows")
    ]
    answers = static.compile_cases(chip, cases, tmp_path)
    costs = {}
    for answer in answers:
        code = static.program_of(answer)
        operation, by = answer["operation"], answer["by"]
        partly, full = (static.kernel_cost(answer, code, chip, rows) for rows in (static.VALID, static.ROWS))
        costs[operation, by] = partly
        assert code.spills == 0, (operation, by)
        assert partly.bound == full.bound == "DMA", (operation, by)
        # Against the time of moving the valid rows once, at the efficiency that is achieved.
        moved = static.ROW_BYTES[operation] / chip.bandwidth / static.EFFICIENCY
        assert partly.overlap <= 1.02 * static.VALID * moved, (operation, by)
        assert full.overlap <= 1.01 * static.ROWS * moved, (operation, by)
    for operation in static.OPERATIONS:
        assert costs[operation, "valid_rows"].overlap <= 1.05 * costs[operation, "kernel"].overlap


def test_machine_code_is_read_by_loop(static, tmp_path):
    (tmp_path / "1-kernel-02-final_bundles.txt").write_text(
        "= control target key start\n"
        "     0   :  { %s0 = sld }\n"
        "   0x1 LB: > { %s1 = sadd }\n"
        "   0x2 LB: >> { %v1 = vld }\n"
        "   0x3   : >> { %v2 = vst }\n"
        "   0x4   : > { %s2 = sbr }\n"
        "   0x5 PB:  { %s3 = sst }\n"
    )
    (tmp_path / "1-kernel-00-final_hlo-static-per-bundle-utilization.txt").write_text(
        "== CAPACITY:\n2 2\n== UTILIZATION:\n0 0 0 0 0 0 1 0 0 0\n0 0 0 0 0 0 0 0 2 0\n"
    )
    code = static.read_machine_code(tmp_path / "1-kernel-02-final_bundles.txt")
    assert (code.straight, code.spills) == (2, 3)
    assert [(loop.depth, loop.bundles) for loop in code.loops] == [(1, 2), (2, 2)]
