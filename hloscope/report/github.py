"""GitHub workflow commands: annotations on the files of a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hloscope.report.escape import printable
from hloscope.report.places import Place, place_of, place_of_target
from hloscope.report.verdict import Verdict
from hloscope.rule import Severity

_COMMANDS = {Severity.INFO: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}
# As GitHub's toolkit escapes: messages, and properties, which end at a colon or comma.
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def to_github(verdict: Verdict, root: Path) -> str:
    """A command for each finding, each exceeded budget and a failed compile; files are relative to `root`.

    A finding that fails the run is an error, whatever its severity.
    """
    return "".join(f"{line}\n" for line in _commands(verdict, root))


def _commands(verdict: Verdict, root: Path) -> Iterator[str]:
    at = place_of_target(verdict.report.target.source, root)
    if not verdict.compiled:
        yield _command("error", at, "compile failed", verdict.reasons[0])
    for finding in verdict.report.findings:
        kind = "error" if finding in verdict.failing else _COMMANDS[finding.severity]
        text = "\n".join(t for t in (finding.title, *finding.details, finding.advice) if t)
        title = f"{finding.code} {finding.severity.value}"
        yield _command(kind, place_of(finding, root) or at, title, text)
    for budget in verdict.exceeded:
        yield _command("error", at, f"budget {budget.name}", budget.said)


def _command(kind: str, place: Place | None, title: str, message: str) -> str:
    properties = {"title": title}
    if place is not None:
        properties = {"file": place.file, **({"line": str(place.line)} if place.line else {}), **properties}
    said = ",".join(f"{name}={_escaped(value, _PROPERTY)}" for name, value in properties.items())
    return f"::{kind} {said}::{_escaped(message, _MESSAGE)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    lines = (printable(line) for line in text.split("\n"))
    return "\n".join(lines).translate(str.maketrans(table))
