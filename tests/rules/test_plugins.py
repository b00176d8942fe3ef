"""Rules of other distributions, found by entry points; broken ones give one line."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from hloscope import engine, plugins
from hloscope.cli.main import main
from hloscope.rule import Finding, Severity, rule


@rule(code="ACME101", name="every-module", severity=Severity.INFO)
def every_module(analyses, *, title: str = "found"):
    """Finds something in every module."""
    yield Finding(
        code="ACME101",
        severity=Severity.INFO,
        title=title,
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


@rule(code="ACME102", name="always-fails", severity=Severity.INFO)
def always_fails(analyses):
    """Fails on every module."""
    raise ZeroDivisionError("by zero")


@rule(code="HS101", name="same-code", severity=Severity.INFO)
def same_code(analyses):
    """Has a code that is taken."""
    return ()


@rule(code="acme-1", name="odd-code", severity=Severity.INFO)
def odd_code(analyses):
    """Has no code."""
    return ()


@pytest.fixture
def install(monkeypatch):
    """Makes values the entry points of a distribution, by attribute of a module or as the module itself."""

    def call(*names, module=None, value=None):
        made = ModuleType("acme_rules")
        for name in names:
            setattr(made, name, globals()[name])
        monkeypatch.setitem(sys.modules, "acme_rules", made)
        points = [EntryPoint(name="acme", value=value or "acme_rules", group=plugins.GROUP)]
        monkeypatch.setattr(plugins, "installed_points", lambda: points)
        engine.load_rules.cache_clear()

    yield call
    monkeypatch.undo()
    engine.load_rules.cache_clear()


def test_a_module_of_rules_and_a_single_one(install):
    install("every_module", "always_fails")
    codes = [r.code for r in engine.load_rules()]
    assert {"ACME101", "ACME102", "HS101"} <= set(codes)
    assert codes == sorted(codes)
    install("every_module", "always_fails", value="acme_rules:every_module")
    assert engine.get_rule("acme101").plugin == "acme"
    assert "ACME102" not in [r.code for r in engine.load_rules()]


def test_its_findings_stand_among_the_others(install, dump_file, capsys):
    install("every_module")
    assert main(["analyze", str(dump_file("dense")), "--select", "ACME1", "--json", "-"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["code"], finding["title"]) == ("ACME101", "found")
    assert main(["check", str(dump_file("dense")), "--select", "acme", "--fail-on", "info"]) == 1
    assert "ACME101 reached --fail-on" in capsys.readouterr().err
    assert main(["explain", "ACME101"]) == 0
    assert "from the plug-in acme" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        ((), "acme_rulez", "the plug-in acme cannot be loaded (acme_rulez): ModuleNotFoundError: "),
        (
            (),
            "acme_rules:nothing",
            "the plug-in acme cannot be loaded (acme_rules:nothing): AttributeError: ",
        ),
        ((), "acme_rules", "the plug-in acme has no rule in acme_rules; mend or uninstall it"),
        (
            ("odd_code",),
            "acme_rules",
            "the plug-in acme has a rule 'acme-1': codes are capitals and three digits",
        ),
        (("same_code",), "acme_rules", "hloscope and acme have a rule HS101 each: uninstall one"),
    ],
)
def test_a_broken_one_gives_one_line(names, value, message, install, dump_file, capsys):
    install(*names, value=value)
    for command in (["rules"], ["analyze", str(dump_file("dense"))]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: {message}")
        assert err.count("\n") == 1


def test_one_that_fails_on_a_module_is_named(install, dump_file, capsys):
    install("always_fails")
    assert main(["analyze", str(dump_file("dense"))]) == 2
    assert capsys.readouterr().err == (
        "error: rule ACME102 of the plug-in acme failed: ZeroDivisionError: by zero; "
        "--ignore ACME102 goes without it\n"
    )
    assert main(["analyze", str(dump_file("dense")), "--ignore", "ACME102", "--json", "/dev/null"]) == 0
