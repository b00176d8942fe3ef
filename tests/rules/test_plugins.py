"""Rules of other distributions, found by entry points; broken ones give one line."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
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


@rule(code="HS999", name="own-code", severity=Severity.INFO)
def own_code(analyses):
    """Has a code of hloscope's."""
    return ()


@rule(code="ACME101", name="same-code", severity=Severity.INFO)
def same_code(analyses):
    """Has a code that is taken."""
    return ()


@rule(code="ACME103", name="full-buffer-fusion", severity=Severity.INFO)
def same_name(analyses):
    """Has a name that is taken."""
    return ()


@rule(code="ACME104", name="is-given", severity=Severity.INFO)
def is_given(analyses):
    """Gives what the test says."""
    print("hello from a plug-in")
    return GIVEN["findings"](analyses)


GIVEN = {}


@rule(code="ACME105", name="no-docs", severity=Severity.INFO)
def no_docs(analyses):
    return ()


@rule(code="acme-1", name="odd-code", severity=Severity.INFO)
def odd_code(analyses):
    """Has no code."""
    return ()


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Makes values the entry points of a distribution, by attribute of a module or as the module itself."""

    def call(*names, module=None, value=None):
        made = ModuleType("acme_rules")
        for name in names:
            setattr(made, name, globals()[name])
        monkeypatch.setitem(sys.modules, "acme_rules", made)
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "acme_exits.py").write_text("import sys\nsys.exit(0)\n")
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
        (
            ("own_code",),
            "acme_rules",
            "the plug-in acme has a rule 'HS999': codes are capitals and three digits",
        ),
        (
            ("every_module", "same_code"),
            "acme_rules",
            "acme and acme have a rule ACME101 each: uninstall one, or rename its rule",
        ),
        (
            ("same_name",),
            "acme_rules",
            "hloscope and acme have a rule full-buffer-fusion each: uninstall one",
        ),
        (
            (),
            "acme_exits",
            "the plug-in acme cannot be loaded (acme_exits): SystemExit: 0; mend or uninstall it",
        ),
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


def good(**changed):
    (finding,) = every_module.check(None)
    return replace(finding, code="ACME104", **changed)


@pytest.mark.parametrize(
    ("findings", "message"),
    [
        (lambda _: [5], "TypeError: it gives a int, not a Finding"),
        (lambda _: "abc", "TypeError: it gives a str, not a Finding"),
        (lambda _: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda _: [good(title=None)], "TypeError: its finding's title cannot be None"),
        (lambda _: [good(severity="info")], "TypeError: its finding's severity cannot be 'info'"),
        (lambda _: [good(instructions=("a",))], "TypeError: its finding's instructions cannot be ('a',)"),
        (lambda _: [good(saved_seconds=math.nan)], "TypeError: its finding's saved_seconds cannot be nan"),
        (lambda _: [good(saved_bytes=-5)], "TypeError: its finding's saved_bytes cannot be -5"),
        (lambda _: [good(bytes=1.5)], "TypeError: its finding's bytes cannot be 1.5"),
        (lambda _: [good(places=0)], "TypeError: its finding's places cannot be 0"),
        (lambda _: [good(fix="maybe")], "TypeError: its finding's fix cannot be 'maybe'"),
        (lambda _: [good(details=["a"])], "TypeError: its finding's details cannot be ['a']"),
        (lambda _: [good(facts={"a": {1}})], "TypeError: its finding's facts cannot be {'a': {1}}"),
        (lambda _: [replace(good(), code="HS101")], "ValueError: its finding has the code 'HS101'"),
        (lambda _: sys.exit(0), "SystemExit: 0"),
        (lambda _: next(iter(())), "StopIteration; --ignore ACME104"),
    ],
)
def test_what_it_finds_is_checked(findings, message, install, dump_file, capsys):
    install("is_given")
    GIVEN["findings"] = findings
    for form in ("text", "sarif"):
        assert main(["check", str(dump_file("dense")), "--format", form]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines()[-1].startswith(f"error: rule ACME104 of the plug-in acme failed: {message}")


def test_what_it_prints_is_no_part_of_a_report(install, dump_file, capsys):
    install("is_given")
    GIVEN["findings"] = lambda _: [good(facts={"rows": 3}, saved_seconds=1, bytes=0)]
    assert main(["check", str(dump_file("dense")), "--format", "sarif", "--fail-on", "never"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["version"] == "2.1.0"
    assert err == "hello from a plug-in\n"


def test_one_rule_by_two_ways_is_one(install):
    install("every_module")
    both = [
        EntryPoint(name="acme", value=value, group=plugins.GROUP)
        for value in ("acme_rules", "acme_rules:every_module")
    ]
    plugins.installed_points = lambda: both  # install's monkeypatch puts it back
    assert [r.code for r in engine.load_rules() if r.plugin] == ["ACME101"]


def test_entry_points_that_are_damaged(tmp_path, monkeypatch, capsys):
    for text in (b"[hloscope.rules]\nno equals sign", b"[hloscope.rules]\na = \xff"):
        folder = tmp_path / "bad-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_bytes(text)
        monkeypatch.syspath_prepend(tmp_path)
        engine.load_rules.cache_clear()
        assert main(["rules"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: the entry points of the distribution bad cannot be read: ")
        assert err.endswith("; mend or uninstall it\n")
    monkeypatch.undo()
    engine.load_rules.cache_clear()


def test_a_rule_without_docs(install, capsys):
    install("no_docs")
    assert main(["explain", "ACME105"]) == 2
    assert capsys.readouterr().err == (
        "error: rule ACME105 of the plug-in acme has no docs: its check has no docstring\n"
    )
