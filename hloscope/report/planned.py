"""What `hloscope apply-rules` found and measured, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.plan import action_fields, to_fields
from hloscope.report.model import Report

if TYPE_CHECKING:
    from hloscope.planner.candidates import Candidate
    from hloscope.planner.measured import Measured, Tally
    from hloscope.planner.search import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The step's own report with what was tried on it. `outcome` is None after a dry run.

    `skipped` are candidates that are not safe and were not asked for, `notes` lines on what could not be
    tried, `verification` what `--verify` told, None if it was not asked for.
    """

    report: Report
    candidates: tuple[Candidate, ...]
    skipped: tuple[Candidate, ...]
    notes: tuple[str, ...]
    outcome: Outcome | None
    verification: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON report of the step as it is, with `actions`, `before`, `after`, `plan` and `verification`."""
        outcome = self.outcome
        kept = outcome is not None and outcome.after is not None
        return self.report.to_dict() | {
            "actions": self._actions(),
            "before": None if outcome is None else _measured(outcome.before),
            "after": _measured(outcome.after) if outcome is not None and outcome.after is not None else None,
            "plan": to_fields(outcome.plan) if outcome is not None and kept else None,
            "verification": None if self.verification is None else dict(self.verification),
        }

    def to_html(self) -> str:
        """The page of the step as it is, what was tried above it. Raises UserError without the extra `html`."""
        from hloscope.report.html import render_html
        from hloscope.report.html.compared import planned_tables

        return render_html(self.report, above=planned_tables(self))

    def _actions(self) -> list[dict[str, Any]]:
        if self.outcome is None:
            tried = [_action(c, None) for c in self.candidates]
        else:
            tried = [_action(t.candidate, t) for t in self.outcome.trials]
        return [*tried, *(_action(c, None) for c in self.skipped)]


def _action(candidate: Candidate, trial: Trial | None) -> dict[str, Any]:
    """What was tried, promised and measured; `kept` is null for what was not tried."""
    prediction = candidate.prediction
    return {
        "action": action_fields(candidate.action),
        "title": candidate.action.title,
        "codes": list(candidate.codes),
        "fix": "safe" if candidate.safe else "unsafe",
        "predicted": {
            "sites": prediction.sites,
            "saved_bytes": prediction.saved_bytes,
            "saved_seconds": prediction.saved_seconds,
        },
        "measured": None if trial is None or trial.after is None else _measured(trial.after),
        "kept": None if trial is None else trial.verdict.kept,
        "reason": None if trial is None else trial.verdict.reason,
    }


def _measured(measured: Measured) -> dict[str, Any]:
    return {
        "temp_bytes": measured.temp_bytes,
        "arena_bytes": measured.arena_bytes,
        "peak_bytes": measured.peak_bytes,
        "total_bytes": measured.total_bytes,
        "seconds": measured.seconds,
        "hbm_bytes": measured.hbm_bytes,
        "full_buffer_fusions": _tally(measured.fusions),
        "full_buffer_copies": _tally(measured.copies),
        "valid_row_kernels": _tally(measured.kernels),
        "full_buffer_families": {name: _tally(t) for name, t in measured.families.items()},
        "collectives": _tally(measured.collectives),
        "findings": {code: _tally(t) for code, t in measured.findings.items()},
        "compile_seconds": measured.compile_seconds,
        "error": measured.failed,
    }


def _tally(tally: Tally) -> dict[str, Any]:
    return {"count": tally.count, "bytes": tally.bytes}
