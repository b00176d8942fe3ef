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
# What a finding is judged by: the first of them that both sides know.
_PRICES = ("saved_seconds", "saved_bytes", "held_bytes", "bytes")


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
    not_compared: tuple[str, ...] = ()  # codes of rules that found something, but could not judge both sides

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        tables = (self.buffers, self.census, self.collectives, self.findings)
        parts = (self.settings, self.figures, *tables, self.not_compared)
        return not any(parts)

    def regressions(self, tolerance: float) -> tuple[str, ...]:
        """What got worse: a compile that fails now, figures by more than `tolerance` (a share), and findings (warnings
        and above) that are new, were remarks before, or cost more than they did. What is unknown on a side is not
        judged."""
        after = self.after.settings["status"]
        grown = (
            f"{f.name} {f.spelled(f.before)} → {f.spelled(f.after)}"
            for f in self.figures
            if f.worse(tolerance)
        )
        # How severe a finding is may hang on the chip's memory: told of one chip and not of the other, it says nothing.
        alike = self.before.settings["chip"] == self.after.settings["chip"]
        found = (worsened(c, tolerance, severities=alike) for c in self.findings)
        broke = after == "failed" != self.before.settings["status"]
        return (*(("the compile failed",) if broke else ()), *grown, *filter(None, found))

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
            "not_compared": list(self.not_compared),
        }


def worsened(change: Change, tolerance: float, *, severities: bool) -> str | None:
    """What got worse in a finding, in words, or None. Remarks are not judged; that a remark has become more, only with
    `severities`."""
    before, after = change.before, change.after
    if after is None or after["severity"] not in SERIOUS:
        return None
    name = f"{after['code']} {after['title']}"
    if before is None:
        return name
    if severities and before["severity"] not in SERIOUS:
        return f"{name}: {before['severity']} → {after['severity']}"
    known = next((p for p in _PRICES if before[p] is not None and after[p] is not None), None)
    if known is None or after[known] <= before[known] * (1 + tolerance):
        return None
    unit: Unit = "seconds" if known == "saved_seconds" else "bytes"
    return f"{name}: {spelled(unit, before[known])} → {spelled(unit, after[known])}"


def compare(before: Side, after: Side) -> Diff:
    """What differs between two sides. Comparing the other way gives the same, mirrored.

    What one side does not know is not compared: findings of rules that did not run on it or lacked what they need, and
    buffers where it has no memory figures.
    """
    both = None if before.rules is None or after.rules is None else before.rules & after.rules
    left, right = ([f for f in s.findings if both is None or f["code"] in both] for s in (before, after))
    left_out = {
        f["code"] for s in (before, after) for f in s.findings if both is not None and f["code"] not in both
    }
    remembered = None not in (before.figures["peak"], after.figures["peak"])
    return Diff(
        before=before,
        after=after,
        settings=tuple(_settings(before.settings, after.settings)),
        figures=tuple(_figures(before, after)),
        buffers=changes(BUFFERS, before.buffers, after.buffers) if remembered else (),
        census=changes(CENSUS, before.census, after.census),
        collectives=changes(COLLECTIVES, before.collectives, after.collectives),
        findings=changes(FINDINGS, left, right),
        not_compared=tuple(sorted(left_out)),
    )


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Difference(name=name, before=before.get(name), after=after.get(name))


def _figures(before: Side, after: Side) -> Iterator[Figure]:
    units: dict[str, Unit] = {**before.units, **after.units}
    for name, unit in units.items():
        old, new = before.figures.get(name), after.figures.get(name)
        if old == new:
            continue
        if unit == "seconds" and before.untimed != after.untimed:
            # A time that leaves something out is less than the step's, by what the other side may have in it.
            old, new = (None if side.untimed else value for side, value in ((before, old), (after, new)))
        yield Figure(name=name, unit=unit, before=old, after=new)


def _changes(found: Sequence[Change], kind: Kind) -> list[dict[str, Any]]:
    names = (*kind.traits, *kind.figures)

    def shown(row: Row | None) -> dict[str, Any] | None:
        return None if row is None else {name: row[name] for name in names}

    return [{"status": c.status, "before": shown(c.before), "after": shown(c.after)} for c in found]
