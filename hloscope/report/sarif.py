"""SARIF 2.1.0: findings for code scanning, with the rules' docs and what a baseline accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import hloscope
from hloscope.report.budgets import Budget
from hloscope.report.places import Place, place_of, place_of_target
from hloscope.report.rule_page import rule_page
from hloscope.report.verdict import Verdict
from hloscope.rule import Finding, Rule, Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.INFO: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}
_BUDGET = "budget"
_ROOT = "REPOSITORY"


def to_sarif(verdict: Verdict, root: Path) -> dict[str, Any]:
    """The verdict as a SARIF log of one run; files are relative to `root`.

    A budget that is exceeded is a result too, at the step file.
    """
    index = {rule.code: number for number, rule in enumerate(verdict.rules)}
    report = verdict.report
    # GitHub refuses a whole log for one result without a location.
    at = place_of_target(report.target.source, root) or _dump(report.target.source, root)
    results = [_result(f, index, place_of(f, root) or at) for f in report.findings]
    results += [
        {
            **_result(s.finding, index, place_of(s.finding, root) or at),
            "suppressions": [_suppression(s.reason)],
        }
        for s in (report.held.suppressed if report.held else ())
    ]
    results += [_exceeded(budget, at, len(index)) for budget in verdict.exceeded]
    if report.held is not None:
        # An empty list says that nothing suppresses it; a missing one, that nobody looked: on all results or on none.
        for result in results:
            result.setdefault("suppressions", [])
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(verdict)},
                "invocations": [_invocation(verdict)],
                "originalUriBaseIds": {_ROOT: {"uri": root.absolute().as_uri().rstrip("/") + "/"}},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _driver(verdict: Verdict) -> dict[str, Any]:
    rules = [_rule(rule) for rule in verdict.rules]
    if verdict.exceeded:
        rules.append(
            {"id": _BUDGET, "name": "BudgetExceeded", "shortDescription": {"text": "A budget is exceeded."}}
        )
    return {
        "name": "hloscope",
        "semanticVersion": hloscope.__version__,
        "rules": rules,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    sections = rule.sections
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": sections.get("What it does", rule.summary)},
        "help": {"text": sections.get("What to do", rule.summary), "markdown": rule_page(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _invocation(verdict: Verdict) -> dict[str, Any]:
    notes = [{"level": "warning", "message": {"text": w}} for w in verdict.report.target.warnings]
    failed = [] if verdict.compiled else [{"level": "error", "message": {"text": verdict.reasons[0]}}]
    return {"executionSuccessful": verdict.compiled, "toolExecutionNotifications": failed + notes}


def _result(finding: Finding, index: Mapping[str, int], place: Place) -> dict[str, Any]:
    properties = {
        "places": finding.places,
        "executions": finding.executions,
        "bytes": finding.bytes,
        "savedBytes": finding.saved_bytes,
        "savedSeconds": finding.saved_seconds,
        "instructions": [i.name for i in finding.instructions],
    }
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": ". ".join(t for t in (finding.title, *finding.details, finding.advice) if t)},
        "locations": _locations(place),
        "partialFingerprints": {"hloscope/v1": finding.fingerprint},
        "properties": {name: value for name, value in properties.items() if value is not None},
    }


def _exceeded(budget: Budget, place: Place, index: int) -> dict[str, Any]:
    return {
        "ruleId": _BUDGET,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": budget.said},
        "locations": _locations(place),
        "partialFingerprints": {"hloscope/v1": f"{_BUDGET} {budget.name}"},
    }


def _dump(source: str, root: Path) -> Place:
    """The dump itself: below the root, or by its whole path."""
    path = Path(source).absolute()
    return Place(str(PurePosixPath(path.relative_to(root) if path.is_relative_to(root) else path)), None)


def _locations(place: Place) -> list[dict[str, Any]]:
    if PurePosixPath(place.file).is_absolute():
        return [{"physicalLocation": {"artifactLocation": {"uri": Path(place.file).as_uri()}}}]
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file), "uriBaseId": _ROOT}}
    if place.line is not None:
        physical["region"] = {"startLine": place.line}
    return [{"physicalLocation": physical}]


def _uri(file: str) -> str:
    from urllib.parse import quote

    return quote(file)


def _suppression(reason: str) -> dict[str, Any]:
    return {"kind": "external", "status": "accepted", "justification": reason}
