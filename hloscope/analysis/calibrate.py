"""Figures of a chip from measured times: the shares of its bandwidth, matrix peak and links that a step reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses
    from hloscope.analysis.costs import Costs
    from hloscope.devices import Chip
    from hloscope.hlo import Instruction

# A figure made of fewer times than this would be an anecdote.
LEAST_TIMES = 3
_FIGURES = {"bandwidth": "hbm_efficiency", "compute": "matrix_efficiency", "wire": "ici_efficiency"}
_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured time in seconds, and what ran in it: instructions, each with its executions."""

    name: str
    seconds: float
    parts: tuple[tuple[Instruction, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A share that was reached: the median over `times` of them, which lie between `low` and `high`."""

    name: str
    value: float
    times: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Figures that fit measured times. `error_before` and `error_after` are the median of |estimate / measured - 1|
    over the times that have an estimate; `unused` are the times that no figure comes from, each with the reason."""

    figures: tuple[Figure, ...]
    error_before: float | None
    error_after: float | None
    unused: tuple[tuple[str, str], ...]


def calibrate(analyses: Analyses, measured: Sequence[Measured]) -> Calibration:
    """Fit the shares of the analyses' chip, which must be known, to times.

    What bounds an instruction depends on the shares, so they are fitted in rounds until they stay. What
    other terms take is no part of a share. A share above 1 means that less was moved than is counted: such times are
    left out.
    """
    assert analyses.chip is not None
    start = now = analyses.chip
    figures: tuple[Figure, ...] = ()
    unused: list[tuple[str, str]] = []
    for _ in range(_ROUNDS):
        found, unused = _shares(analyses.with_chip(now).costs, measured)
        figures = tuple(_figure(*item) for item in found.items() if len(item[1]) >= LEAST_TIMES)
        for kind, times in found.items():
            if len(times) < LEAST_TIMES:
                unused += [(name, f"a {kind} takes {LEAST_TIMES} times at least") for name, _ in times]
        fitted = with_shares(start, {figure.name: figure.value for figure in figures})
        if fitted == now:
            break
        now = fitted
    return Calibration(
        figures=figures,
        error_before=_error(analyses.with_chip(start).costs, measured),
        error_after=_error(analyses.with_chip(now).costs, measured),
        unused=tuple(unused),
    )


def with_shares(chip: Chip, shares: dict[str, float]) -> Chip:
    """The chip with other shares, by the names that a figures file has."""
    own = {name: value for name, value in shares.items() if name != "ici_efficiency"}
    ici = replace(chip.ici, efficiency=shares.get("ici_efficiency", chip.ici.efficiency))
    return replace(chip, ici=ici, **own)


def _shares(
    costs: Costs, measured: Iterable[Measured]
) -> tuple[dict[str, list[tuple[str, float]]], list[tuple[str, str]]]:
    """By figure, the share that each time stands for; and the times that stand for none."""
    found: dict[str, list[tuple[str, float]]] = {}
    unused: list[tuple[str, str]] = []
    for one in measured:
        estimate, bound, reason = _estimate(costs, one)
        figure = _FIGURES.get(bound or "")
        if figure is None or not estimate:
            unused.append((one.name, reason))
            continue
        rest = estimate - sum(costs.of(i).bound_seconds * runs for i, runs in one.parts)
        if one.seconds <= rest:
            unused.append((one.name, "as short as what no figure scales"))
            continue
        share = _share_now(costs.chip, figure) * (estimate - rest) / (one.seconds - rest)
        if share > 1:
            unused.append((one.name, f"faster than published figures allow: {share:.2f} of the peak"))
            continue
        found.setdefault(figure, []).append((one.name, share))
    return found, unused


def _estimate(costs: Costs, one: Measured) -> tuple[float | None, str | None, str]:
    """Seconds of all parts, what bounds the longest of them, and why there is no figure in it if there is none."""
    parts = [(costs.of(instruction), runs) for instruction, runs in one.parts]
    for cost, _ in parts:
        if cost.seconds is None:
            return None, None, f"no estimate: {cost.source_of_figure}"
    longest, _ = max(parts, key=lambda part: (part[0].seconds or 0.0) * part[1])
    total = sum((cost.seconds or 0.0) * runs for cost, runs in parts)
    return total, longest.bound_by, f"bound by {longest.bound_by or 'nothing'}, which no figure scales"


def _share_now(chip: Chip | None, figure: str) -> float:
    assert chip is not None
    return chip.ici.efficiency if figure == "ici_efficiency" else float(getattr(chip, figure))


def _figure(name: str, times: Sequence[tuple[str, float]]) -> Figure:
    shares = [share for _, share in times]
    return Figure(
        name=name, value=round(median(shares), 4), times=len(shares), low=min(shares), high=max(shares)
    )


def _error(costs: Costs, measured: Iterable[Measured]) -> float | None:
    estimates = [(_estimate(costs, one)[0], one.seconds) for one in measured]
    errors = [abs(estimate / seconds - 1) for estimate, seconds in estimates if estimate]
    return median(errors) if errors else None
