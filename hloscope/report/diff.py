"""What differs between two reports. Both come as the JSON report has them, so that a file of an earlier run serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.report.budgets import Unit, spelled
from hloscope.report.diff_match import BUFFERS, CENSUS, COLLECTIVES, FINDINGS, Change, Kind, Row, changes
from hloscope.report.diff_side import Side

# What gets worse as it grows; the other figures tell why.
_WORSE = frozenset(
    {"peak", "temp", "arena", "total", "HBM bytes", "collective bytes", "time", "exposed time"}
)
SERIOUS = ("warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of both sides; None is unknown. `unit` is bytes, seconds or count."""

    name: str
    unit: Unit
    before: float | None
    after: float | None

    @property
    def delta(self) -> float | None:
        """How much it grew; None if that is not known."""
        return None if self.before is None or self.after is None else self.after - self.before

    def worse(self, tolerance: float) -> bool:
        """Whether it grew by more than a share of what it was, and should not have."""
        if self.name not in _WORSE or self.before is None or self.after is None:
            return False
        return self.after > self.before * (1 + tolerance)

    def spelled(self, value: float | None) -> str:
        """A value in words."""
        return spelled(self.unit, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting or a version that is not the same: None where one side has none."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diff:
    """What differs, the heaviest first. Rows are as in the JSON report."""

    before: Side
    after: Side
    settings: tuple[Difference, ...]
    figures: tuple[Figure, ...]
    buffers: tuple[Change, ...]
    census: tuple[Change, ...]
    collectives: tuple[Change, ...]
    findings: tuple[Change, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        parts = (self.settings, self.figures, self.buffers, self.census, self.collectives, self.findings)
        return not any(parts)

    def regressions(self, tolerance: float) -> tuple[str, ...]:
        """What got worse: a compile that fails now, figures by more than `tolerance` (a share), and findings (warnings
        and above) that are new. What is unknown on a side is not judged."""
        after = self.after.settings["status"]
        grown = (
            f"{f.name} {f.spelled(f.before)} → {f.spelled(f.after)}"
            for f in self.figures
            if f.worse(tolerance)
        )
        new = (
            f"{c.after['code']} {c.after['title']}"
            for c in self.findings
            if c.before is None and c.after is not None and c.after["severity"] in SERIOUS
        )
        broke = after == "failed" != self.before.settings["status"]
        return (*(("the compile failed",) if broke else ()), *grown, *new)

    def to_html(self, tolerance: float) -> str:
        """The diff as one HTML page that opens offline, with its `regressions`. Raises UserError without the extra
        `html`."""
        from hloscope.report.html import render_diff

        return render_diff(self, self.regressions(tolerance))

    def to_text(self, *, width: int = 100, everything: bool = False) -> str:
        """The diff as the terminal shows it, without colour; `everything` cuts no table short."""
        from hloscope.report.terminal import draw
        from hloscope.report.text_diff import render

        return draw(render(self, width=width, everything=everything), width)

    def __repr__(self) -> str:
        changed = sum(map(len, (self.buffers, self.census, self.collectives, self.findings)))
        return f"Diff({self.before.source} → {self.after.source}, {changed} changes)"

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str | None:
        """The HTML page, for notebooks; None (the plain line is shown) without the extra `html`."""
        from hloscope.report.html.cells import compared

        return compared(self)

    def to_dict(self) -> dict[str, Any]:
        """The diff as JSON values, as `diff_schema.json` documents it."""
        return {
            "schema_version": 1,
            "before": self.before.source,
            "after": self.after.source,
            "settings": [{"name": d.name, "before": d.before, "after": d.after} for d in self.settings],
            "figures": [
                {"name": f.name, "unit": f.unit, "before": f.before, "after": f.after} for f in self.figures
            ],
            "buffers": _changes(self.buffers, BUFFERS),
            "census": _changes(self.census, CENSUS),
            "collectives": _changes(self.collectives, COLLECTIVES),
            "findings": _changes(self.findings, FINDINGS),
        }


def compare(before: Side, after: Side) -> Diff:
    """What differs between two sides. Comparing the other way gives the same, mirrored."""
    return Diff(
        before=before,
        after=after,
        settings=tuple(_settings(before.settings, after.settings)),
        figures=tuple(_figures(before, after)),
        buffers=changes(BUFFERS, before.buffers, after.buffers),
        census=changes(CENSUS, before.census, after.census),
        collectives=changes(COLLECTIVES, before.collectives, after.collectives),
        findings=changes(FINDINGS, before.findings, after.findings),
    )


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Difference(name=name, before=before.get(name), after=after.get(name))


def _figures(before: Side, after: Side) -> Iterator[Figure]:
    units: dict[str, Unit] = {**before.units, **after.units}
    for name, unit in units.items():
        figure = Figure(name=name, unit=unit, before=before.figures.get(name), after=after.figures.get(name))
        if figure.before != figure.after:
            yield figure


def _changes(found: Sequence[Change], kind: Kind) -> list[dict[str, Any]]:
    names = (*kind.traits, *kind.figures)

    def shown(row: Row | None) -> dict[str, Any] | None:
        return None if row is None else {name: row[name] for name in names}

    return [{"status": c.status, "before": shown(c.before), "after": shown(c.after)} for c in found]
