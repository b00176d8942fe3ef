"""What must hold for every rule."""

from __future__ import annotations

import re

import pytest
from expectations import check, example_of, expected

from hloscope.engine import get_rule, load_rules
from hloscope.errors import UserError
from hloscope.rule import HEADINGS, OPTIONS_HEADING

RULES = load_rules()
CODES = [r.code for r in RULES]


def test_the_catalogue_is_there():
    assert {"HS101", "HS102", "HS103", "HS201"} <= set(CODES)
    assert len(CODES) == len(set(CODES))


@pytest.mark.parametrize("rule", RULES, ids=CODES)
def test_rule_is_documented(rule):
    assert re.fullmatch(r"HS[1-5]\d\d", rule.code)
    check_documented(rule)


def check_documented(rule):
    """Also for rules that are none of ours."""
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name)
    assert tuple(rule.sections) == HEADINGS + ((OPTIONS_HEADING,) if rule.options else ())
    assert all(option.doc for option in rule.options), "every option has an item under its heading"
    assert all(rule.sections.values())
    assert rule.summary.endswith(".")
    assert rule.code in rule.sections["Example"], "the example says where the rule fires"


@pytest.mark.parametrize("rule", RULES, ids=CODES)
def test_the_example_in_the_docs_really_fires(rule):
    text = example_of(rule.code)
    assert rule.code in expected(text), "the example marks what is found"
    check(text, rule.code)


def test_names_are_unique():
    names = [r.name for r in RULES]
    assert len(names) == len(set(names))


def test_an_unknown_code_is_an_error_that_lists_the_rules():
    with pytest.raises(UserError, match=r"no rule 'HS999'.*HS101"):
        get_rule("HS999")
    assert get_rule("hs101").code == "HS101"
