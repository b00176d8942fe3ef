"""JUnit XML: a case for the compile, for each rule that ran and for each budget."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from hloscope.report.budgets import Budget
from hloscope.report.escape import printable
from hloscope.report.verdict import Verdict
from hloscope.rule import Finding, Rule
from hloscope.units import where

_NAME = "hloscope"


def to_junit(verdict: Verdict) -> str:
    """The verdict as JUnit XML. A rule fails with the findings that fail the run; others are told as output."""
    target = verdict.report.target
    cases = [_compile(verdict)]
    if verdict.compiled:
        cases += [_rule(rule, verdict) for rule in verdict.rules]
        cases += [_budget(budget) for budget in verdict.report.budgets]
    for case in cases:
        case.set("classname", f"{_NAME}.{printable(target.module)}")
    failures = sum(case.find("failure") is not None for case in cases)
    errors = sum(case.find("error") is not None for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors)}
    suites = ET.Element("testsuites", {"name": _NAME, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": printable(target.source), **counts, "skipped": "0"})
    suite.extend(cases)
    ET.indent(suites, " ")
    # ASCII with character references: right in whatever encoding a log is kept.
    return ET.tostring(suites, encoding="us-ascii", xml_declaration=True).decode() + "\n"


def _compile(verdict: Verdict) -> ET.Element:
    target = verdict.report.target
    seconds = {} if target.compile_seconds is None else {"time": f"{target.compile_seconds:.3f}"}
    case = ET.Element("testcase", {"name": "compile", **seconds})
    if not verdict.compiled:
        _add(case, "error", verdict.reasons[0], ())
    return case


def _rule(rule: Rule, verdict: Verdict) -> ET.Element:
    case = ET.Element("testcase", {"name": f"{rule.code} {rule.name}"})
    failing = [f for f in verdict.failing if f.code == rule.code]
    others = [f for f in verdict.report.findings if f.code == rule.code and f not in failing]
    held = verdict.report.held
    accepted = [s for s in (held.suppressed if held else ()) if s.finding.code == rule.code]
    if failing:
        _add(case, "failure", rule.summary, [_told(f) for f in failing])
    output = [*(_told(f) for f in others), *(f"accepted: {_told(s.finding)}: {s.reason}" for s in accepted)]
    if output:
        ET.SubElement(case, "system-out").text = "\n".join(map(printable, output))
    return case


def _budget(budget: Budget) -> ET.Element:
    case = ET.Element("testcase", {"name": printable(f"budget {budget.name}")})
    if budget.exceeded:
        _add(case, "failure", budget.said, ())
    else:
        ET.SubElement(case, "system-out").text = printable(f"{budget.held} {budget.note}".strip())
    return case


def _told(finding: Finding) -> str:
    place = where(finding.source)
    return f"{finding.title} [{finding.fingerprint}]" + (f" at {place}" if place else "")


def _add(case: ET.Element, kind: str, message: str, lines: Sequence[str]) -> None:
    element = ET.SubElement(case, kind, {"message": printable(message)})
    element.text = "\n".join(map(printable, lines))
