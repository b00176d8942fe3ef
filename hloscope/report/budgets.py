"""Limits that a step is held against: memory, time, executions of a family, findings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hloscope.analysis.place import Phase
from hloscope.errors import UserError
from hloscope.rule import CODE_PREFIX, Severity
from hloscope.units import count, duration, parse_seconds, parse_size, size

if TYPE_CHECKING:
    from hloscope.report.model import Report

Unit = Literal["bytes", "seconds", "count"]

# Memory figures, by the name that a user writes.
MEMORY = ("temp", "arena", "total", "peak", "argument", "output", "alias", "generated_code")
TIMES = ("time", "exposed")
_EXECUTIONS = "executions."
_FINDINGS = "findings"
_PLUG_IN = re.compile(r"[A-Z]{2,10}", re.ASCII)  # all rules of one, as --select takes them
_SEVERITIES = tuple(s.value for s in Severity)
_PHASES = frozenset(p.value for p in Phase)
_ALIKE = 0.75  # of difflib: a letter or two of a short name
_ROUNDING = 1e-6
_ONLY_COMPILED = ("temp", "generated_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that a figure may be. Bytes are of one device, seconds of one step."""

    name: str
    unit: Unit
    value: float

    @property
    def counts_findings(self) -> bool:
        """Whether it is a limit on findings."""
        return self.unit == "count" and not self.name.startswith(_EXECUTIONS)

    @property
    def of_rules(self) -> bool:
        """Whether it is a limit on findings of rules, by their codes."""
        return self.counts_findings and self.name != _FINDINGS and self.name not in _SEVERITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit, and what the figure is. `note` says what is odd about it."""

    name: str
    unit: Unit
    limit: float
    actual: float
    note: str = ""

    @property
    def exceeded(self) -> bool:
        """Whether the figure is above the limit."""
        return self.actual > self.limit

    @property
    def held(self) -> str:
        """The figure and its limit in words: `3.1 GiB of 2.0 GiB`."""
        return f"{self.spelled(self.actual)} of {self.spelled(self.limit)}"

    @property
    def said(self) -> str:
        """What exceeds the limit, in words: `over the budget for temp: 3.1 GiB of 2.0 GiB, by 1.1 GiB`."""
        return f"over the budget for {self.name}: {self.held}, by {self.spelled(self.actual - self.limit)}"

    def spelled(self, value: float) -> str:
        """A figure in words."""
        return spelled(self.unit, value)


def spelled(unit: Unit, value: float | None) -> str:
    """A figure of a unit in words."""
    if unit == "seconds":
        return duration(value)
    return (size if unit == "bytes" else count)(None if value is None else int(value))


def parse_limits(words: Iterable[str]) -> dict[str, Limit]:
    """Limits as they are typed: `temp=92GiB`, `time=2s`, `executions.activation=180`, `HS101=4`, `warning=0`.

    Raises UserError for an unknown name, for no limit of its kind and for a name given twice.
    """
    limits: dict[str, Limit] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        if not equals:
            raise _wrong(word)
        limit = parse_limit(name, text)
        if limit.name in limits:
            raise UserError(f"--budget {limit.name} is given twice")
        limits[limit.name] = limit
    return limits


def parse_limit(name: str, text: str) -> Limit:
    """One limit. Raises UserError as `parse_limits`."""
    name = name.strip()
    if name.startswith(_EXECUTIONS) and len(name) > len(_EXECUTIONS):
        return Limit(name=name, unit="count", value=_count(name, text))
    plain = name.lower().replace("-", "_")
    if plain in MEMORY:
        return Limit(name=plain, unit="bytes", value=_read(parse_size, plain, text))
    if plain in TIMES:
        return Limit(name=plain, unit="seconds", value=_read(parse_seconds, plain, text))
    if plain == _FINDINGS or plain in _SEVERITIES:
        return Limit(name=plain, unit="count", value=_count(name, text))
    if CODE_PREFIX.fullmatch(name.upper()) or _PLUG_IN.fullmatch(name):
        return Limit(name=name.upper(), unit="count", value=_count(name, text))
    raise _wrong(f"{name}={text}")


def _read(parse: Callable[[str], float], name: str, text: str) -> float:
    try:
        return parse(text)
    except UserError as error:
        raise UserError(f"the budget on {name}: {error}") from error


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", text, re.ASCII):
        raise UserError(f"the budget on {name} takes a whole number, not {text!r}")
    return int(text)


def _wrong(word: str) -> UserError:
    return UserError(
        f"--budget {word}: write NAME=LIMIT, e.g. temp=92GiB, with one of {', '.join((*MEMORY, *TIMES))}, "
        f"executions.FAMILY, findings, {', '.join(_SEVERITIES)} or a rule code"
    )


def measure(report: Report, limits: Mapping[str, Limit]) -> tuple[Budget, ...]:
    """The report held against limits. Raises UserError where a figure is unknown: that is no pass."""
    return tuple(_measured(report, limit) for limit in limits.values())


def _measured(report: Report, limit: Limit) -> Budget:
    if limit.name.startswith(_EXECUTIONS):
        return _executions(report, limit)
    figures: dict[Unit, Callable[[Report, str], float]] = {
        "bytes": _memory,
        "seconds": _time,
        "count": _found,
    }
    actual = figures[limit.unit](report, limit.name)
    notes = (
        "at least: a part of the step has no estimate"
        if limit.unit == "seconds" and report.time.unknown
        else "",
        _waits(report, actual) if limit.name == "exposed" else "",
    )
    note = "; ".join(n for n in notes if n)
    return Budget(name=limit.name, unit=limit.unit, limit=limit.value, actual=actual, note=note)


def _memory(report: Report, name: str) -> int:
    actual: int | None = getattr(report.memory, f"{name}_bytes")
    if actual is not None:
        return actual
    known = ", ".join(n for n in MEMORY if getattr(report.memory, f"{n}_bytes") is not None)
    why = " (no dump holds it, only a compile of a step tells it)" if name in _ONLY_COMPILED else ""
    raise _unknown(name, f"{name} is unknown here{why}; known: {known or 'none'}")


def _time(report: Report, name: str) -> float:
    """The estimated time of a step, or of what nothing hides in it."""
    time = report.time
    seconds = time.seconds if name == "time" else time.exposed_seconds
    if seconds is None:
        raise _unknown(name, "the time of a step is unknown here; --topology tells the chip")
    return seconds


def _waits(report: Report, exposed: float) -> str:
    """What the exposed time is of: the waits of the report's collectives, and the rest."""
    waits = [time.step_seconds for time in report.time.collectives]
    known = [w for w in waits if w is not None]
    if len(known) < len(waits):
        return ""
    rest = exposed - sum(known)
    other = f", {duration(rest)} for copies and other asynchronous work" if rest > _ROUNDING * exposed else ""
    return f"{duration(sum(known))} for collectives{other}"


def _found(report: Report, name: str) -> int:
    """Findings that are not suppressed: all, of one severity, or of one code."""
    if name == _FINDINGS:
        return len(report.findings)
    if name in _SEVERITIES:
        return sum(f.severity.value == name for f in report.findings)
    if not any(code.startswith(name) for code in report.judged):
        raise _unknown(name, "the rule lacks what it needs here (memory, --topology): hloscope explain tells")
    return sum(f.code.startswith(name) for f in report.findings)


def _executions(report: Report, limit: Limit) -> Budget:
    wanted = limit.name.removeprefix(_EXECUTIONS)
    families = [f for f in report.census.families if wanted in (f.family, f"{f.family} {f.phase}")]
    near = [] if families else _near(report, wanted)
    # Who writes 0 says that it is gone; who writes more has most likely misspelt what is there.
    if near and limit.value > 0:
        raise UserError(
            f"--budget {limit.name}: the census has no such family, but {' and '.join(near)}; "
            f"if it is gone, write {limit.name}=0"
        )
    runs = [f.executions for f in families]
    if None in runs:
        raise _unknown(limit.name, f"a loop around {wanted} has an unknown number of trips")
    return Budget(
        name=limit.name,
        unit="count",
        limit=limit.value,
        actual=sum(n for n in runs if n is not None),
        note="" if families else _absent(near),
    )


def _near(report: Report, wanted: str) -> list[str]:
    """Names of families that are close to one that the census does not have. None where it has the family in another
    phase: then it runs no times in this one."""
    families = {f.family for f in report.census.families}
    base, _, phase = wanted.rpartition(" ")
    if base in families and phase in _PHASES:
        return []
    names = families | {f"{f.family} {f.phase}" for f in report.census.families}
    return difflib.get_close_matches(wanted, sorted(names), n=3, cutoff=_ALIKE)


def _absent(near: Sequence[str]) -> str:
    return "the census has no family of this name" + (f"; it has {' and '.join(near)}" if near else "")


def _unknown(name: str, why: str) -> UserError:
    return UserError(f"the budget on {name} cannot be checked: {why}")
