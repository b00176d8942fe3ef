"""The table of regions read as data says what `hloscope_kernels` makes of it."""

from __future__ import annotations

from itertools import product

import pytest

from hloscope.analysis.regions import Problem, regions_of
from hloscope_kernels.ragged_dot import choose

# As jax names the devices of each chip.
DEVICES = {
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
    "unknown": "TPU v99",
}
SIZES = tuple(product((4095, 4096), (1023, 1024, 2048), (1024, 2047, 2048), (15, 16)))
DTYPES = (("bfloat16",) * 3, ("bfloat16", "bfloat16", "float32"))


@pytest.mark.parametrize("operation", ["dot", "transposed", "contraction"])
@pytest.mark.parametrize("chip", list(DEVICES))
def test_both_readers_agree(chip, operation):
    covered = 0
    for (m, k, n, groups), dtypes in product(SIZES, DTYPES):
        sizes = {"operation": operation, "m": m, "k": k, "n": n, "groups": groups, "dtypes": dtypes}
        problem = Problem(implementation="pallas_tpu", **sizes)
        found = any(not r.misses(problem) for r in regions_of(operation, chip))
        expected = any(r.covers(choose.Problem(**sizes), DEVICES[chip]) for r in choose.regions())
        assert found == expected, problem
        covered += found
    assert bool(covered) == (chip in ("v5e", "v5p", "v6e", "tpu7x")), "nothing was compared on the others"


def test_what_keeps_a_problem_out_is_told():
    (region,) = regions_of("dot", "v6e")
    problem = Problem(
        implementation="pallas_tpu",
        operation="dot",
        m=512,
        k=1024,
        n=4096,
        groups=8,
        dtypes=("bfloat16", "bfloat16", "float32"),
    )
    assert region.misses(problem) == (
        "rows: 512, at least 4,096",
        "groups: 8, at least 16",
        "float32, only bfloat16",
    )
