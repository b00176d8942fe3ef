"""What a user can set of a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hloscope import engine
from hloscope.analysis.bundle import Analyses
from hloscope.devices import chips
from hloscope.engine import RuleSettings, load_rules, run_rules
from hloscope.errors import UserError
from hloscope.rule import Finding, Option, Severity, rule


@rule(code="HS599", name="many-instructions", severity=Severity.WARNING)
def many_instructions(analyses, *, least: int = 1, share: float = 0.5, small_bytes: int = 8):
    """Counts.

    ## What it does
    ## Options
    - `least`: how many there
      must be.
    - `share`: nothing.
    """
    if analyses.module.instruction_count >= least:
        yield Finding(
            code="HS599",
            severity=Severity.WARNING,
            title=f"{least} {share} {small_bytes}",
            instructions=(),
            places=1,
            source=None,
            executions=None,
            bytes=None,
            saved_bytes=None,
            saved_seconds=None,
            fix="none",
            advice="",
        )


@pytest.fixture
def only_rule(monkeypatch):
    monkeypatch.setattr(engine, "load_rules", lambda: (many_instructions,))


def test_options_are_the_keywords_of_the_check_with_their_docs():
    assert many_instructions.options == (
        Option(name="least", default=1, doc="how many there must be."),
        Option(name="share", default=0.5, doc="nothing."),
        Option(name="small_bytes", default=8, doc=""),
    )
    assert [o.kind for o in many_instructions.options] == ["whole number", "number", "size"]


def test_settings_reach_the_rule_and_its_findings(only_rule, shared_dump):
    analyses = Analyses.of_file(shared_dump("dense"))
    assert [f.title for f in run_rules(analyses)] == ["1 0.5 8"]
    (finding,) = run_rules(analyses, settings={"HS599": RuleSettings(options={"share": 0.25})})
    assert (finding.title, finding.severity) == ("1 0.25 8", Severity.WARNING)
    (finding,) = run_rules(analyses, settings={"HS599": RuleSettings(severity=Severity.ERROR)})
    assert finding.severity is Severity.ERROR
    assert run_rules(analyses, settings={"HS599": RuleSettings(options={"least": 10**9})}) == ()


@pytest.mark.parametrize("value", [0, 1, 10**9])
@pytest.mark.parametrize("name", ["dense", "moe_jax012"])
def test_no_value_of_an_option_breaks_a_rule(name, value, shared_dump):
    file = shared_dump(name)
    analyses = Analyses(
        file.module,
        buffer_assignment=file.buffer_assignment,
        chip=chips()["tpu7x"],
        topology="tpu7x:2x2x1",
    )
    settings = {
        r.code: RuleSettings(options={o.name: type(o.default)(value) for o in r.options})
        for r in load_rules()
    }
    found = run_rules(analyses, settings=settings)
    assert all(i.module is file.module for f in found for i in f.instructions)
    if value == 0:
        assert len(found) > len(run_rules(analyses)), "with no threshold there is more to tell"


def test_values_take_the_type_of_the_default():
    least, share, small = many_instructions.options
    assert (least.parse(3), share.parse(1), small.parse("1MiB"), small.parse(7)) == (3, 1.0, 1 << 20, 7)
    flag = replace(least, name="flag", default=True)
    assert flag.parse(False) is False
    assert replace(least, default="a").parse("b") == "b"


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        (0, "3", "'3' is no whole number"),
        (0, True, "True is no whole number"),
        (0, -1, "below zero"),
        (1, float("nan"), "without end"),
        (2, "much", "is no size"),
        (2, 1.5, r"1\.5 is no size"),
    ],
)
def test_other_values_are_refused(number, value, words):
    with pytest.raises(UserError, match=words):
        many_instructions.options[number].parse(value)


def test_an_option_needs_a_default():
    with pytest.raises(TypeError, match="option least of a rule needs a default"):

        @rule(code="HS598", name="no-default", severity=Severity.INFO)
        def check(analyses, *, least):
            """Nothing."""
