from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.ragged import ValidRows, kernel_names, valid_rows
from hloscope.hlo import HloFile

Dump = Callable[[str], HloFile]


@pytest.mark.parametrize(
    ("told", "source", "expected"),
    [
        (None, None, ValidRows(fraction=None, source=None, reason="no proof")),
        (0.5, "option", ValidRows(fraction=0.5, source="option", reason="given with --valid-fraction")),
        (0.5, "step", ValidRows(fraction=0.5, source="step", reason="given by the step")),
        (0.5, None, ValidRows(fraction=0.5, source=None, reason="given by the user")),
    ],
)
def test_what_nobody_proves_has_to_be_told(
    told: float | None, source: str | None, expected: ValidRows, shared_dump: Dump
) -> None:
    module = shared_dump("oom").module
    analyses = Analyses(module, valid_fraction=told, valid_fraction_source=source)
    buffer = replace(analyses.rows.buffers[0], reason="no proof")
    assert valid_rows(analyses, buffer) == expected


def test_a_proof_wins_over_what_was_told(shared_dump: Dump) -> None:
    analyses = Analyses(shared_dump("oom").module, valid_fraction=0.5, valid_fraction_source="option")
    buffer = replace(analyses.rows.buffers[0], valid_fraction=0.25, reason="counted")
    assert valid_rows(analyses, buffer) == ValidRows(fraction=0.25, source="proved", reason="counted")


def test_kernels_are_named_without_their_settings(shared_dump: Dump) -> None:
    names = [
        [kernel_names(b) for b in Analyses(shared_dump(dump).module).rows.buffers]
        for dump in ("deepseek", "qwen3_30b", "oom")
    ]
    assert names == [["gmm / tgmm", "gmm"], ["gmm_v2 / tgmm_v2", "gmm_v2"], ["ragged-dot-none"] * 2]
