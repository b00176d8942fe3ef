"""Tables of what is held against something: budgets and a baseline, a step before and after a plan, two targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.report.html.tables import Cell, HtmlTable, text_cell
from hloscope.report.text_diff import (
    Words,
    buffer_words,
    change_row,
    collective_words,
    counted,
    family_words,
    figure_row,
    finding_figures,
    setting,
    title_before,
)
from hloscope.report.text_planned import figures, measured, predicted

if TYPE_CHECKING:
    from hloscope.planner.candidates import Candidate
    from hloscope.planner.search import Trial
    from hloscope.report.diff import Diff
    from hloscope.report.diff_match import Change
    from hloscope.report.model import Report
    from hloscope.report.planned import Planned

_FIGURES = ("figure", "before", "after", "change")


def verdict_tables(report: Report) -> list[HtmlTable]:
    """Budgets, and what a baseline accepts."""
    budgets = HtmlTable(
        key="budgets",
        title="Budgets",
        note="the limits that the step is held against",
        columns=("figure", "limit", "is", "verdict", "note"),
        rows=[
            _row(b.name, b.spelled(b.limit), b.spelled(b.actual), "over" if b.exceeded else "kept", b.note)
            for b in report.budgets
        ],
    )
    held = report.held
    accepted = HtmlTable(
        key="accepted",
        title="Accepted findings",
        note="known, and not counted",
        columns=("code", "title", "reason"),
        rows=[_row(s.finding.code, s.finding.title, s.reason) for s in held.suppressed] if held else [],
    )
    return [budgets, accepted]


def planned_tables(planned: Planned) -> list[HtmlTable]:
    """What was tried on a step, and the step before and after what helped."""
    outcome = planned.outcome
    tried: list[tuple[Candidate, Trial | None]] = (
        [(c, None) for c in planned.candidates]
        if outcome is None
        else [(t.candidate, t) for t in outcome.trials]
    )
    actions = HtmlTable(
        key="actions",
        title="Actions",
        note="; ".join(planned.notes) or "each was compiled by itself, then together with what helped",
        columns=("codes", "action", "fix", "predicted", "measured", "verdict", "why"),
        rows=[_action(candidate, trial, planned) for candidate, trial in tried]
        + [_action(candidate, None, planned) for candidate in planned.skipped],
    )
    after = None if outcome is None else outcome.after
    rows = [] if outcome is None or after is None else [_row(*row) for row in figures(outcome.before, after)]
    step = HtmlTable(
        key="before-after",
        title="Before and after",
        note="what the compiler made of the step as it is, and with the plan",
        columns=_FIGURES,
        rows=rows,
    )
    return [actions, step]


def _action(candidate: Candidate, trial: Trial | None, planned: Planned) -> Sequence[Cell]:
    outcome = planned.outcome
    told = (
        ""
        if trial is None or trial.after is None or outcome is None
        else measured(outcome.before, trial.after)
    )
    if trial is None:
        verdict, why = "not tried", "" if candidate.safe else "not safe by itself: --unsafe-fixes"
    else:
        verdict, why = "kept" if trial.verdict.kept else "rejected", trial.verdict.reason
    return _row(
        ", ".join(candidate.codes),
        candidate.action.title,
        "safe" if candidate.safe else "unsafe",
        predicted(candidate),
        told,
        verdict,
        why,
    )


def diff_tables(diff: Diff) -> list[HtmlTable]:
    """What differs between two targets."""
    return [
        HtmlTable(
            key="figures",
            title="Figures",
            note="of one device",
            columns=_FIGURES,
            rows=[_row(*figure_row(figure)) for figure in diff.figures],
        ),
        HtmlTable(
            key="findings",
            title="Findings",
            note=counted(diff.findings).replace("gone", "fixed"),
            columns=("status", "code", "finding", "before", "figures"),
            rows=[_finding(change) for change in diff.findings],
        ),
        _changes("buffers", "Buffers at the peak", diff.buffers, buffer_words),
        _changes("census", "Census", diff.census, family_words),
        _changes("collectives", "Collectives", diff.collectives, collective_words),
        HtmlTable(
            key="settings",
            title="Settings and versions",
            note="what is not the same",
            columns=("name", "before", "after"),
            rows=[_row(d.name, setting(d.before), setting(d.after)) for d in diff.settings],
        ),
    ]


def _changes(key: str, title: str, found: Sequence[Change], name: Words) -> HtmlTable:
    return HtmlTable(
        key=key,
        title=title,
        note=counted(found),
        columns=("status", "what", "count", "runs", "bytes", "change"),
        rows=[_change(change, name) for change in found],
        ordered_by=5,
    )


def _change(change: Change, name: Words) -> Sequence[Cell]:
    *words, counted, runs, moved, shown = change_row(change, name)
    row, delta = change.after or change.before or {}, change.delta("bytes")
    figures = [(counted, row.get("count")), (runs, row.get("executions")), (moved, row.get("bytes"))]
    # The last is how much changed, whichever way.
    figures.append((shown, None if delta is None else abs(delta)))
    return (*_row(*words), *(Cell(text, -1 if value is None else value) for text, value in figures))


def _finding(change: Change) -> Sequence[Cell]:
    row = change.after or change.before or {}
    return _row(
        "fixed" if change.status == "gone" else change.status,
        row["code"],
        row["title"],
        title_before(change),
        finding_figures(change),
    )


def _row(*texts: str) -> Sequence[Cell]:
    return [text_cell(text) for text in texts]
