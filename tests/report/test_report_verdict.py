from __future__ import annotations

from dataclasses import dataclass

import pytest

from hloscope.errors import UserError
from hloscope.report.budgets import Limit, parse_limits
from hloscope.report.verdict import FailOn, parse_codes, parse_fail_on
from hloscope.rule import Severity

KNOWN = ("HS101", "HS102", "HS201")


@dataclass
class Found:
    code: str
    severity: Severity


def reached(words: list[str], *found: tuple[str, str]) -> bool:
    parsed = parse_fail_on(words, KNOWN)
    return any(parsed.fails(Found(code, Severity(level))) for code, level in found)  # pyright: ignore


def test_fail_on_a_severity_and_above() -> None:
    warning, error = ("HS101", "warning"), ("HS201", "error")
    assert not reached([], error)
    assert reached(["warning"], warning)
    assert reached(["Warning"], error)
    assert not reached(["error"], warning)
    assert reached(["info"], ("HS999", "info"))
    # The laxest of several counts.
    assert reached(["error", "info"], ("HS999", "info"))


def test_fail_on_codes_and_prefixes() -> None:
    assert reached(["HS101"], ("HS101", "info"))
    assert reached(["hs1,HS201"], ("HS102", "info"))
    assert not reached(["HS201"], ("HS101", "error"))
    assert reached(["HS201", "error"], ("HS101", "error"))


@pytest.mark.parametrize("word", ["fatal", "HSX", "HS1234", "101", "HS٣"])
def test_fail_on_nonsense(word: str) -> None:
    with pytest.raises(UserError, match=f"'{word}' is no severity and no rule"):
        parse_fail_on([word], KNOWN)


def test_fail_on_all_of_a_plug_in() -> None:
    assert parse_fail_on(["hs"], KNOWN).codes == ("HS",)


@pytest.mark.parametrize("words", [[""], [" , "]])
def test_fail_on_nothing_is_no_gate_that_always_passes(words: list[str]) -> None:
    with pytest.raises(UserError, match="--fail-on is empty"):
        parse_fail_on(words, KNOWN)


def test_fail_on_a_rule_that_is_not_there() -> None:
    with pytest.raises(UserError, match="--fail-on HS999: there is no such rule; there are HS101"):
        parse_fail_on(["HS999"], KNOWN)


def test_codes() -> None:
    assert parse_codes(["hs101, HS2", "", "HS301"], "--select") == ("HS101", "HS2", "HS301")


def test_never_fails_on_nothing() -> None:
    assert parse_fail_on(["never"], KNOWN) == FailOn()
    with pytest.raises(UserError, match="--fail-on never stands alone"):
        parse_fail_on(["never", "error"], KNOWN)


def test_a_plug_in_has_codes_of_its_own() -> None:
    assert parse_codes(["acme1", "ACME101"], "--select") == ("ACME1", "ACME101")


def test_budgets() -> None:
    words = ["temp=92GiB", "generated-code=1 MB", "PEAK=0B", "hs1=4", "Warning=0", "findings=9"]
    limits = parse_limits([*words, "executions.activation backward=60", "executions.a=b=3"])
    assert {(n, limit.unit, limit.value) for n, limit in limits.items()} == {
        ("temp", "bytes", 92 * 2**30),
        ("generated_code", "bytes", 1_000_000),
        ("peak", "bytes", 0),
        ("HS1", "count", 4),
        ("warning", "count", 0),
        ("findings", "count", 9),
        ("executions.activation backward", "count", 60),
        ("executions.a=b", "count", 3),
    }
    counted = [n for n, limit in limits.items() if limit.counts_findings]
    assert counted == ["HS1", "warning", "findings"]
    assert limits["peak"] == Limit(name="peak", unit="bytes", value=0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["92GiB"], r"--budget 92GiB: write NAME=LIMIT, e\.g\. temp=92GiB, with one of temp, arena, total"),
        (["heap=1GiB"], r"--budget heap=1GiB: write NAME=LIMIT"),
        (["temp="], "'' is no size"),
        (["temp=92"], "'92' is no size"),
        (["temp=-1GiB"], "is no size"),
        (["temp=1GiB", "TEMP=2GiB"], "--budget temp is given twice"),
        (["HS101=1GiB"], "the budget on HS101 takes a whole number, not '1GiB'"),
        (["findings=-1"], "takes a whole number"),
        (["executions.=4"], "write NAME=LIMIT"),
    ],
)
def test_budgets_that_are_wrong(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_limits(words)
