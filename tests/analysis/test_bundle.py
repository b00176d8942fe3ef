from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.hlo import HloFile


def test_each_analysis_is_made_once_and_only_when_asked_for(
    shared_dump: Callable[[str], HloFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    nothing = SimpleNamespace(buffers=())
    for module, function in (
        ("memory", "analyze_memory"),
        ("census", "take_census"),
        ("collectives", "find_collectives"),
        ("rows", "analyze_rows"),
    ):
        monkeypatch.setattr(
            f"hloscope.analysis.{module}.{function}",
            lambda *_, name=module, **__: made.append(name) or nothing,
        )
    analyses = Analyses.of_file(shared_dump("oom"))
    assert made == []
    assert analyses.census is analyses.census
    assert analyses.memory is analyses.memory
    assert analyses.collectives is analyses.collectives
    assert analyses.rows is analyses.rows
    # The census asks which rows are ragged, as kernels are counted at their valid ones.
    assert made == ["rows", "census", "memory", "collectives"]


def test_what_is_known_reaches_the_analyses(shared_dump: Callable[[str], HloFile]) -> None:
    file = shared_dump("dense")
    analyses = Analyses(
        file.module,
        buffer_assignment=file.buffer_assignment,
        mesh={"data": 8},
        mesh_device_ids=range(8),
        hbm_limit_bytes=1 << 34,
    )
    assert analyses.memory.hbm_limit_bytes == 1 << 34
    assert analyses.memory.total_bytes == 1271377728
    assert analyses.collectives.mesh == {"data": 8}
    assert analyses.valid_fraction is None
    assert Analyses(file.module).memory.arena_bytes is None
