"""One side of a diff: what a JSON report says, checked, since it may be anybody's file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hloscope.errors import UserError
from hloscope.report.budgets import Unit
from hloscope.report.diff_match import BUFFERS, CENSUS, COLLECTIVES, FINDINGS, Kind, Row
from hloscope.report.json import SCHEMA_VERSION
from hloscope.report.target import begins_a_report

_MEMORY = (
    "argument", "output", "alias", "temp", "arena", "total", "generated_code", "peak", "fragmentation",
)  # fmt: skip
_SETTINGS = ("module", "platform", "chip", "devices", "topology", "mesh", "status", "valid_fraction")
_BY_NAME = ("versions", "flags", "compiler_options")
# Traits of the rows: what they are where they are no texts, and which a row always has.
_KINDS: Mapping[str, type[object]] = {
    "phases": list,
    "mesh_axes": list,
    "dimension": int,
    "group_size": int,
    "asynchronous": bool,
}
_ALWAYS = frozenset(
    {"label", "family", "shape", "opcode", "phases", "code", "severity", "title", "fingerprint"}
)
# More than any figure of a step; what is larger could not be reckoned with.
_LARGEST = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A report as far as it is compared. `figures` are by name, in the `units` of that name. `untimed` is what has no
    part in the times, by opcode. `rules` are the codes of those that ran and could judge; None in a report of an
    hloscope that did not tell."""

    source: str
    settings: Mapping[str, Any]
    figures: Mapping[str, float | None]
    units: Mapping[str, Unit]
    buffers: Sequence[Row]
    census: Sequence[Row]
    collectives: Sequence[Row]
    findings: Sequence[Row]
    rules: frozenset[str] | None
    untimed: Mapping[str, int]


def is_report(target: str) -> bool:
    """Whether a target is a JSON report of an earlier run."""
    path = Path(target)
    if not path.is_file():
        return False
    if path.suffix.lower() == ".json":
        return True
    try:
        with path.open("rb") as file:
            return begins_a_report(file.read(200).lstrip())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def read_side(path: str) -> Side:
    """The side that a JSON report tells. Raises UserError if it is none of this version."""
    try:
        content: object = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no report of hloscope")
    return side_of(cast("dict[str, Any]", content), path)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def side_of(report: Mapping[str, Any], source: str) -> Side:
    """The side that the JSON values of a report tell. Raises UserError for values that a report does not have."""
    version = report.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{source} is no report of this hloscope (schema_version {version!r}, not {SCHEMA_VERSION})"
        )
    if "figures" in report and "before" in report:
        raise UserError(f"{source} is a diff, not a report: give what it compared")
    try:
        return _side(report, source)
    except KeyError as error:
        raise UserError(f"{source} is no whole report of hloscope: it lacks {error}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{source} is no whole report of hloscope: a value in it is of the wrong kind ({error})"
        ) from error


def _side(report: Mapping[str, Any], source: str) -> Side:
    memory, target = report["memory"], report["target"]
    census, collectives = _rows(CENSUS, report["census"]), _rows(COLLECTIVES, report["collectives"])
    accepted = [s["finding"] for s in report["suppressed"]]
    figures = {name: _number(memory[f"{name}_bytes"]) for name in _MEMORY}
    figures |= {"HBM bytes": _sum(census, "bytes"), "collective bytes": _sum(collectives, "bytes")}
    time = report["time"]
    times = {"time": _number(time["seconds"]), "exposed time": _number(time["exposed_seconds"])}
    counts = {"instructions": report["counts"]["instructions"], "fusions": report["counts"]["fusions"]}
    return Side(
        source=source,
        settings={
            **{name: target[name] for name in _SETTINGS},
            **{f"{above}.{name}": value for above in _BY_NAME for name, value in target[above].items()},
        },
        figures=figures | times | {name: _number(value) for name, value in counts.items()},
        units=_units(bytes=figures, seconds=times, count=counts),
        buffers=_rows(BUFFERS, memory["families_at_peak"]),
        census=census,
        collectives=collectives,
        findings=_rows(FINDINGS, [*report["findings"], *accepted]),
        untimed={each["opcode"]: each["count"] for each in time["unknown"]},
        rules=None if "rules" not in report else frozenset(_texts("rules", report["rules"])),
    )


def _units(**names: Iterable[str]) -> dict[str, Unit]:
    return {name: cast("Unit", unit) for unit, group in names.items() for name in group}


def _rows(kind: Kind, rows: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    return tuple(
        {
            **{name: _trait(name, row[name]) for name in kind.traits},
            **{name: _number(row[name]) for name in kind.figures},
            **{name: _trait(name, row[name]) for name in kind.hints if name in row},
        }
        for row in rows
    )


def _texts(name: str, value: object) -> list[str]:
    if isinstance(value, list) and _holds_texts(cast("object", value)):
        return cast("list[str]", value)
    raise TypeError(f"{name} cannot be {value!r:.100}")


def _trait(name: str, value: object) -> object:
    """The value of a trait. Raises TypeError if it is of another kind than a report's."""
    if value is None and name not in _ALWAYS:
        return None
    wanted = _KINDS.get(name, str)
    if type(value) is wanted and (wanted is not list or _holds_texts(value)):
        return cast("object", value)
    raise TypeError(f"{name} cannot be {value!r:.100}")


def _holds_texts(value: object) -> bool:
    return all(isinstance(text, str) for text in cast("list[object]", value))


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return value
    raise TypeError(f"{value!r:.100} is no figure")


def _sum(rows: Sequence[Row], name: str) -> float | None:
    """The sum, or None if a part of it is unknown."""
    values = [row[name] for row in rows]
    return None if None in values else sum(values)
