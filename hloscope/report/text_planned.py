"""What `hloscope apply-rules` found and measured, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table

from hloscope.report import text
from hloscope.report.planned import Planned
from hloscope.report.tables import Column, table
from hloscope.report.terminal import beside, cut, indented, joined, words
from hloscope.units import UNKNOWN, count, duration, plural, size

if TYPE_CHECKING:
    from hloscope.planner.candidates import Candidate
    from hloscope.planner.measured import Measured, Tally
    from hloscope.planner.search import Outcome, Trial

T = TypeVar("T", int, float)

_LONGEST = 400
_SHOWN_LEAVES = 8
_LEAF_COLUMNS = (
    Column(title="furthest apart", shrinks=True),
    Column(title="type", optional=1),
    Column(title="difference", right=True),
    Column(title="roundings", right=True),
    Column(title="allowed", right=True),
    Column(title="ok"),
)
_STYLES = {True: "bold green", False: "bold yellow"}
_COLUMNS = (
    Column(title=""),
    Column(title="before", right=True),
    Column(title="after", right=True),
    Column(title="change", right=True),
)


def render(planned: Planned, *, width: int) -> RenderableType:
    """The actions, each predicted against measured, and the step before and after."""
    return Group(*_parts(planned, width))


def _parts(planned: Planned, width: int) -> Iterator[RenderableType]:
    target = planned.report.target
    if target.status == "failed":
        # Nobody has seen yet what does not fit, and why.
        yield from (text.render(planned.report, width=width), "")
    else:
        devices = None if target.devices is None else plural(target.devices, "device")
        yield words((joined((target.module, joined((target.chip, devices), ", "))), "bold"))
    yield from _actions(planned)
    for note in planned.notes:
        yield indented(words((note, "dim")))
    outcome = planned.outcome
    if outcome is None:
        return
    if outcome.together is not None:
        verdict = "kept" if outcome.together.kept else "not all"
        yield words("Together  ", (verdict, _STYLES[outcome.together.kept]), f"  {outcome.together.reason}")
    if outcome.after is None:
        yield words("Nothing was kept: the step stays as it is.")
        return
    yield ""
    yield table(_COLUMNS, list(figures(outcome.before, outcome.after)), width)
    if planned.verification is not None:
        yield ""
        yield from _verification(planned.verification, width)


def _verification(told: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """How many results are the same in every bit, and those that are furthest apart."""
    leaves: list[Mapping[str, Any]] = told["leaves"]
    same = sum(leaf["bitwise"] for leaf in leaves)
    verdict = ("the same", "bold green") if told["ok"] else ("not the same", "bold red")
    yield words(
        ("Verified", "bold"),
        f"  on {told['topology']}: ",
        verdict,
        f"  {plural(len(leaves), 'result')},",
        f" {same} of them bitwise",
    )
    worst = sorted((leaf for leaf in leaves if not leaf["bitwise"]), key=_apart, reverse=True)
    rows = [_leaf(leaf) for leaf in worst[:_SHOWN_LEAVES]]
    if rows:
        yield table(_LEAF_COLUMNS, rows, width)
    if len(worst) > len(rows):
        yield indented(words((f"{len(worst) - len(rows)} more differ by less", "dim")))


def _apart(leaf: Mapping[str, Any]) -> float:
    return math.inf if leaf["roundings"] is None else leaf["roundings"]


def _leaf(leaf: Mapping[str, Any]) -> Sequence[str]:
    roundings = leaf["roundings"]
    return (
        leaf["name"],
        f"{leaf['dtype']}{leaf['shape']}",
        UNKNOWN if leaf["difference"] is None else f"{leaf['difference']:.3g}",
        "not finite" if roundings is None else f"{roundings:.3g}",
        f"{leaf['allowed_roundings']:g}",
        "yes" if leaf["ok"] else "NO",
    )


def _actions(planned: Planned) -> Iterator[RenderableType]:
    tried: list[tuple[Candidate, Trial | None]]
    if planned.outcome is None:
        tried = [(c, None) for c in planned.candidates]
    else:
        tried = [(t.candidate, t) for t in planned.outcome.trials]
    if not tried and not planned.skipped:
        yield words(("Actions", "bold"), "  none: no finding has an action that could be tried")
        return
    yield words(("Actions", "bold"), (f"  {plural(len(tried), 'candidate')}", "dim"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for candidate, trial in tried:
        _add(grid, candidate, trial, planned.outcome)
    for candidate in planned.skipped:
        grid.add_row(_codes(candidate), words(cut(candidate.action.title, _LONGEST)))
        grid.add_row("", words(("not tried: it is not safe by itself; --unsafe-fixes", "dim")))
    yield indented(grid)


def _add(grid: Table, candidate: Candidate, trial: Trial | None, outcome: Outcome | None) -> None:
    grid.add_row(_codes(candidate), words(cut(candidate.action.title, _LONGEST)))
    grid.add_row("", words((f"predicted  {predicted(candidate)}", "dim")))
    if trial is None or outcome is None:
        return
    if trial.after is not None:
        grid.add_row("", words((f"measured   {measured(outcome.before, trial.after)}", "dim")))
    word = "kept" if trial.verdict.kept else "rejected"
    verdict = words((word, _STYLES[trial.verdict.kept]))
    grid.add_row("", beside(verdict, words(cut(trial.verdict.reason, _LONGEST))))


def _codes(candidate: Candidate) -> RenderableType:
    return words((", ".join(candidate.codes), "yellow"))


def predicted(candidate: Candidate) -> str:
    """What an action promises, before anything is compiled."""
    prediction = candidate.prediction
    return joined(
        (
            plural(prediction.sites, "site"),
            f"{size(prediction.saved_bytes)} fewer moved"
            if prediction.saved_bytes is not None
            else "bytes saved unknown",
            None if prediction.saved_seconds is None else f"{duration(prediction.saved_seconds)} saved",
            "memory unknown until it is compiled",
        )
    )


def measured(before: Measured, after: Measured) -> str:
    """The same figures as predicted, then what could not be predicted."""
    return joined(
        (
            _fewer(before.hbm_bytes, after.hbm_bytes, size, "fewer moved", "more moved"),
            _fewer(before.seconds, after.seconds, duration, "saved", "lost"),
            f"temp {size(after.temp_bytes)}{_by(before.temp_bytes, after.temp_bytes)}",
            f"peak {size(after.peak_bytes)}{_by(before.peak_bytes, after.peak_bytes)}",
            None if after.compile_seconds is None else f"compiled in {duration(after.compile_seconds)}",
        )
    )


def _fewer(old: T | None, new: T | None, write: Callable[[T], str], less: str, more: str) -> str | None:
    """How much less of something; None where nobody knows."""
    if old is None or new is None:
        return None
    return f"{write(old - new)} {less}" if new <= old else f"{write(new - old)} {more}"


def _by(old: float | None, new: float | None) -> str:
    return "" if old is None or new is None else f" ({_change(old, new) or 'new'})"


def figures(before: Measured, after: Measured) -> Iterator[Sequence[str]]:
    """Rows of what was measured of the step: a name, before, after, the change."""
    for name in ("temp", "arena", "peak", "total"):
        yield _sizes(name, getattr(before, f"{name}_bytes"), getattr(after, f"{name}_bytes"))
    if before.seconds is not None or after.seconds is not None:
        yield (
            "estimated step",
            duration(before.seconds),
            duration(after.seconds),
            _change(before.seconds, after.seconds),
        )
    yield _sizes("HBM bytes a step", before.hbm_bytes, after.hbm_bytes)
    yield from _tallies("full-buffer fusions", before.fusions, after.fusions)
    yield from _tallies("full-buffer copies", before.copies, after.copies)
    yield from _tallies("valid-row kernels", before.kernels, after.kernels)
    yield from _tallies("collectives", before.collectives, after.collectives)
    for code in sorted({*before.findings, *after.findings}):
        old, new = before.findings.get(code), after.findings.get(code)
        yield code, _sites(old), _sites(new), ""


def _sizes(name: str, old: int | None, new: int | None) -> Sequence[str]:
    return name, size(old), size(new), _change(old, new)


def _tallies(name: str, old: Tally, new: Tally) -> Iterator[Sequence[str]]:
    if old.count or new.count:
        yield name, count(old.count), count(new.count), ""
        yield _sizes("  bytes a step", old.bytes, new.bytes)


def _sites(tally: Tally | None) -> str:
    return "none" if tally is None else plural(tally.count, "site")


def _change(old: float | None, new: float | None) -> str:
    if old is None or new is None:
        return UNKNOWN
    if not old:
        return ""
    return "0 %" if new == old else f"{100 * (new - old) / old:+.1f} %"


def explain(clusters: Sequence[tuple[str, Sequence[str]]]) -> RenderableType:
    """Proofs, or where they broke: a verdict and its lines each."""
    parts: list[RenderableType] = [words(("Proofs", "bold"))]
    for verdict, proof in clusters:
        parts.append(indented(words(cut(verdict, _LONGEST))))
        parts += [indented(words((cut(line, _LONGEST), "dim")), 6) for line in proof]
    return Group(*parts)
