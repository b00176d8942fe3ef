"""Trying candidates: each alone, then what helped together, every try compiled and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hloscope.plan import BeforeLoop, LogicalRules, LoopUpdate, MoveAxis, Plan, ValidRows
from hloscope.planner.candidates import Candidate
from hloscope.planner.judge import TOLERANCE, Objective, Verdict, gain, judge
from hloscope.planner.measured import Measured

# Compiles and measures a step with each of some plans; the texts say what is being tried. A compile that fails
# is measured too; a plan that cannot be applied is a text that says why.
Try = Callable[[Sequence[tuple[Plan, str]]], list[Measured | str]]

# Whether a change is kept over the step before it, for findings of these codes.
_Judge = Callable[[Measured, Measured, Sequence[str]], Verdict]

_ORDER = (LogicalRules, MoveAxis, BeforeLoop, LoopUpdate, ValidRows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate, what it measured alone (None if it could not be applied), and what became of it."""

    candidate: Candidate
    after: Measured | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that was tried. `after` is the step with `plan`; None if nothing was kept, and `before` is the best.

    `together` says how what helped alone went together; None where there was nothing to combine.
    """

    objective: Objective
    before: Measured
    trials: tuple[Trial, ...]
    together: Verdict | None
    plan: Plan
    after: Measured | None


def search(
    before: Measured,
    found: Sequence[Candidate],
    attempt: Try,
    objective: Objective,
    *,
    trade: float | None = None,
) -> Outcome:
    """Try every candidate alone, then the kept ones together; where that fails, one after the other."""
    keep: _Judge = partial(judge, objective=objective, trade=trade)
    alone = attempt([(plan_of([c]), c.action.title) for c in found])
    trials = [_trial(before, c, after, keep) for c, after in zip(found, alone, strict=True)]
    trials = _one_of_each_group(before, trials, objective)
    kept = sorted((t for t in trials if t.verdict.kept), key=lambda t: -_gain(before, t, objective))
    together: Verdict | None = None
    chosen, after = kept[:1], kept[0].after if kept else None
    if len(kept) > 1:
        chosen, after, together = _combine(before, kept, attempt, objective, keep)
    elif not kept and before.failed is not None:
        chosen, after, together = _bring_down(before, trials, attempt)
        trials = [_fits_with_others(t) if t in chosen else t for t in trials]
        chosen = [t for t in trials if t.verdict.kept]
    trials = [t if not t.verdict.kept or t in chosen else _left_out(t) for t in trials]
    return Outcome(
        objective=objective,
        before=before,
        trials=tuple(trials),
        together=together,
        plan=plan_of([t.candidate for t in chosen]),
        after=after,
    )


def plan_of(chosen: Sequence[Candidate]) -> Plan:
    """Rules first, since the builder takes them, kernels last, since they must see the final shardings."""
    actions = [c.action for c in chosen]
    return Plan(actions=tuple(sorted(actions, key=lambda a: _ORDER.index(type(a)))))


def _trial(before: Measured, candidate: Candidate, after: Measured | str, keep: _Judge) -> Trial:
    if isinstance(after, str):
        return Trial(candidate=candidate, after=None, verdict=Verdict(kept=False, reason=after))
    return Trial(candidate=candidate, after=after, verdict=keep(before, after, candidate.codes))


def _one_of_each_group(before: Measured, trials: Sequence[Trial], objective: Objective) -> list[Trial]:
    best: dict[str, Trial] = {}
    for trial in (t for t in trials if t.verdict.kept):
        rival = best.get(trial.candidate.group)
        if rival is None or _gain(before, trial, objective) > _gain(before, rival, objective):
            best[trial.candidate.group] = trial
    return [
        t
        if not t.verdict.kept or best[t.candidate.group] is t
        else _rejected(t, f"{best[t.candidate.group].candidate.action.title} gains more")
        for t in trials
    ]


def _combine(
    before: Measured, kept: Sequence[Trial], attempt: Try, objective: Objective, keep: _Judge
) -> tuple[list[Trial], Measured | None, Verdict]:
    """All of them if they are good together, else as many as can be added, the best first."""
    after, verdict = _try_together(before, kept, attempt, objective, keep)
    if verdict.kept:
        return list(kept), after, verdict
    chosen, best = [kept[0]], kept[0].after
    if len(kept) == 2:
        return chosen, best, verdict
    for trial in kept[1:]:
        after, verdict = _try_together(before, [*chosen, trial], attempt, objective, keep)
        if verdict.kept:
            chosen, best = [*chosen, trial], after
    return chosen, best, verdict


def _bring_down(
    before: Measured, trials: Sequence[Trial], attempt: Try
) -> tuple[list[Trial], Measured | None, Verdict | None]:
    """All that brings a step nearer to what the chip has, where none is enough alone; of alternatives the best."""
    best: dict[str, Trial] = {}
    for trial in sorted(trials, key=lambda t: -_gain(before, t, "temp")):
        if _gain(before, trial, "temp") > 0:
            best.setdefault(trial.candidate.group, trial)
    nearer = list(best.values())
    if len(nearer) < 2:
        return [], None, None
    (after,) = attempt([(plan_of([t.candidate for t in nearer]), f"{len(nearer)} together")])
    why = after if isinstance(after, str) else after.failed
    if why is not None or isinstance(after, str):
        return [], None, Verdict(kept=False, reason=f"together they do not either: {why}")
    return nearer, after, Verdict(kept=True, reason="it compiles now, with all of them")


def _fits_with_others(trial: Trial) -> Trial:
    verdict = Verdict(kept=True, reason="nearer to what the chip has, but not enough alone")
    return Trial(candidate=trial.candidate, after=trial.after, verdict=verdict)


def _try_together(
    before: Measured, trials: Sequence[Trial], attempt: Try, objective: Objective, keep: _Judge
) -> tuple[Measured | None, Verdict]:
    """Together they must do all that each is for, and no less for the objective than the best of them."""
    (after,) = attempt([(plan_of([t.candidate for t in trials]), f"{len(trials)} together")])
    if isinstance(after, str):
        return None, Verdict(kept=False, reason=after)
    for trial in trials:
        verdict = keep(before, after, trial.candidate.codes)
        if not verdict.kept:
            return after, verdict
    best = trials[0].after
    assert best is not None
    lost = gain(before, best, objective) - gain(before, after, objective)
    if lost > TOLERANCE:
        return after, Verdict(kept=False, reason=f"together they save {lost:.1%} less than the best alone")
    return after, Verdict(kept=True, reason="together they do what each does alone")


def _gain(before: Measured, trial: Trial, objective: Objective) -> float:
    return 0.0 if trial.after is None else gain(before, trial.after, objective)


def _left_out(trial: Trial) -> Trial:
    return _rejected(trial, "it helps alone, but not together with what gains more")


def _rejected(trial: Trial, reason: str) -> Trial:
    return Trial(candidate=trial.candidate, after=trial.after, verdict=Verdict(kept=False, reason=reason))
