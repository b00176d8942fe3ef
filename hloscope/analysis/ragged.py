"""What is known of a ragged buffer from all sides: the share of its rows that hold tokens, and who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses
    from hloscope.analysis.rows import RaggedBuffer

_TOLD = {"option": "given with --valid-fraction", "step": "given by the step"}
# Kernels that spell out their shapes and tiles: `gmm_v2-g_32-m_32768-...`.
_SETTINGS = re.compile(r"-[a-z]+_\d.*")
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidRows:
    """The share (0 to 1] of a ragged buffer's rows that hold tokens; None is unknown.

    `source` is "proved" by the program, told by an "option" or by the "step", or None where nobody told.
    `reason` says how it is known, or what would have to be.
    """

    fraction: float | None
    source: str | None
    reason: str


def valid_rows(analyses: Analyses, buffer: RaggedBuffer) -> ValidRows:
    """The valid share of a buffer. What the program proves wins over what anybody told."""
    if buffer.valid_fraction is not None:
        return ValidRows(fraction=buffer.valid_fraction, source="proved", reason=buffer.reason)
    told, source = analyses.valid_fraction, analyses.valid_fraction_source
    if told is None:
        return ValidRows(fraction=None, source=None, reason=buffer.reason)
    return ValidRows(fraction=told, source=source, reason=_TOLD.get(source or "", "given by the user"))


def kernel_names(buffer: RaggedBuffer) -> str:
    """The grouped matmuls of a buffer as a person calls them: `gmm / tgmm`."""
    return " / ".join(sorted({_SETTINGS.sub("", g.name)[:_LONGEST_NAME] for g in buffer.matmuls}))
