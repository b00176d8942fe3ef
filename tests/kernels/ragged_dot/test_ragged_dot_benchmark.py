"""The benchmark measures the same products that the tests check, at a size that a CPU bears."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hloscope_kernels.ragged_dot import benchmark
from hloscope_kernels.ragged_dot.choose import Operation
from hloscope_kernels.ragged_dot.shapes import QWEN35_397B_WI, Shape

TINY = Shape(name="tiny", m=64, k=16, n=8, groups=4, valid_rows=40)


def test_sizes_are_uneven_and_add_up_to_the_published_rows() -> None:
    sizes = benchmark.uneven_sizes(QWEN35_397B_WI)
    assert len(sizes) == QWEN35_397B_WI.groups
    assert sum(sizes) == QWEN35_397B_WI.valid_rows
    assert max(sizes) > 1.5 * min(sizes)


@pytest.mark.parametrize("operation", benchmark.OPERATIONS)
def test_a_program_runs_on_its_operands(operation: Operation) -> None:
    lhs, rhs, bounds = benchmark.operands(TINY, operation)
    out = benchmark.program(operation, "xla")(lhs, rhs, bounds)
    problem = benchmark.problem_of(TINY, operation)
    shape = (4, 16, 8) if operation == "contraction" else (64, problem.n)
    assert out.shape == shape
    assert np.isfinite(np.asarray(out, np.float32)).all()


def test_the_table_has_a_line_for_what_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "REAL_SHAPES", (TINY,))
    table = list(benchmark.lines())
    assert len(table) == 1 + 3 * 4
    assert sum("x of XLA" in line for line in table) >= 3
    assert sum("it needs a TPU" in line for line in table) == 3


def test_a_cpu_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert jax.default_backend() == "cpu"
    benchmark.main()
    assert "no TPU or GPU here" in capsys.readouterr().out
