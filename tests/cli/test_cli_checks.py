from __future__ import annotations

from dataclasses import dataclass

import pytest

from hloscope.cli.checks import FailOn, parse_budgets, parse_codes
from hloscope.errors import UserError
from hloscope.rule import Severity


@dataclass
class Found:
    code: str
    severity: Severity


def reached(words: list[str], *found: tuple[str, str]) -> bool:
    parsed = FailOn.parse(words)
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


@pytest.mark.parametrize("word", ["fatal", "HS", "HS1234", "101", "HS٣"])
def test_fail_on_nonsense(word: str) -> None:
    with pytest.raises(UserError, match="is no rule code"):
        FailOn.parse([word])


@pytest.mark.parametrize("words", [[""], [" , "]])
def test_fail_on_nothing_is_no_gate_that_always_passes(words: list[str]) -> None:
    with pytest.raises(UserError, match="--fail-on is empty"):
        FailOn.parse(words)


def test_fail_on_a_rule_that_is_not_there() -> None:
    with pytest.raises(UserError, match="--fail-on HS999: there is no such rule; there are HS101"):
        FailOn.parse(["HS999"])


def test_codes() -> None:
    assert parse_codes(["hs101, HS2", "", "HS301"]) == ("HS101", "HS2", "HS301")


def test_budgets() -> None:
    assert parse_budgets(["temp=92GiB", "generated-code=1 MB", "PEAK=0B"]) == {
        "temp": 92 * 2**30,
        "generated_code": 1_000_000,
        "peak": 0,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["92GiB"], r"--budget 92GiB: write NAME=SIZE, e\.g\. temp=92GiB, with one of temp, arena, total"),
        (["heap=1GiB"], r"--budget heap=1GiB: write NAME=SIZE"),
        (["temp="], "'' is no size"),
        (["temp=92"], "'92' is no size"),
        (["temp=-1GiB"], "is no size"),
        (["temp=1GiB", "TEMP=2GiB"], "--budget temp is given twice"),
    ],
)
def test_budgets_that_are_wrong(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_budgets(words)
