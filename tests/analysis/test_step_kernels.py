from __future__ import annotations

from collections.abc import Callable

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.step_kernels import PALLAS, step_kernels
from hloscope.devices import chips
from hloscope.hlo import HloFile


@pytest.mark.parametrize("name", ["deepseek", "qwen35_397b", "qwen3_30b", "dense"])
def test_every_call_is_listed_once(name: str, shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump(name).module
    calls = [i for c in module.control_computations for i in c.instructions if i.custom_call_target == PALLAS]
    found = step_kernels(Analyses(module, chip=chips()["tpu7x"]))
    assert sorted(i.name for k in found for i in k.instructions) == sorted(i.name for i in calls)
    assert [k.seconds for k in found] == sorted((k.seconds for k in found), key=lambda s: -(s or 0))


def test_kernels_by_name_shape_and_phase(shared_dump: Callable[[str], HloFile]) -> None:
    module = shared_dump("deepseek").module
    analyses = Analyses(module, chip=chips()["tpu7x"])
    found = {(k.name, k.phase, k.shape): k for k in step_kernels(analyses)}
    gmm = found["gmm", "forward", "bf16[524288,2048]"]
    assert (gmm.count, gmm.executions) == (2, 116)
    assert gmm.bytes == 116 * (analyses.costs.of(gmm.instructions[0]).hbm_bytes or 0)
    assert gmm.seconds == pytest.approx(116 * (analyses.costs.of(gmm.instructions[0]).seconds or 0))
    assert gmm.limit == "upper", "how many of its rows hold tokens is not known"


def test_without_a_chip_no_kernel_has_a_time(shared_dump: Callable[[str], HloFile]) -> None:
    found = step_kernels(Analyses(shared_dump("deepseek").module))
    assert found
    assert all(k.seconds is None for k in found)
    assert all(k.bytes for k in found)
