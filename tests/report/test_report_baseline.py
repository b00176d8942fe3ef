"""Baselines: written, read, edited, and held against what is found."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloscope.analysis.bundle import Analyses
from hloscope.engine import load_rules, run_rules
from hloscope.errors import UserError
from hloscope.report.baseline import Baseline, Entry, StepName, hold, read_baseline, removed, renewed, to_toml

RAN = tuple(r.code for r in load_rules())
STEP, OTHER = StepName(name="train.py:step", topology="v6e:2x2"), StepName(name="jit_step")
NONE = Baseline(path="", steps={})


@pytest.fixture
def found(shared_dump):
    return run_rules(Analyses.of_file(shared_dump("deepseek")))


def written(tmp_path, baseline):
    path = tmp_path / "baseline.toml"
    path.write_text(to_toml(baseline), encoding="utf-8")
    return read_baseline(str(path))


def of_one(*entries):
    return Baseline(path="", steps={STEP: entries})


def test_what_is_written_accepts_what_there_was(found, tmp_path):
    baseline = written(tmp_path, renewed(found, NONE, RAN, STEP))
    held = hold(found, baseline, RAN, STEP)
    assert (held.new, held.stale) == ((), ())
    assert [s.finding for s in held.suppressed] == list(found)
    assert {s.reason for s in held.suppressed} == {"known when this baseline was written"}


def test_one_file_for_several_steps(found, tmp_path):
    baseline = written(tmp_path, renewed(found, NONE, RAN, STEP))
    assert hold(found, baseline, RAN, OTHER).new == found, "what is accepted of one step is new in another"
    baseline = written(tmp_path, renewed(found[:1], baseline, RAN, OTHER))
    assert [len(baseline.entries(s)) for s in (STEP, OTHER)] == [len(found), 1]
    held = hold(found, baseline, RAN, OTHER)
    assert (held.new, held.stale) == (found[1:], ())
    other_chip = replace(STEP, topology="tpu7x:2x2x1")
    assert hold(found, baseline, RAN, other_chip).new == found


def test_new_findings_and_stale_entries(found, tmp_path):
    first, *rest = found
    gone = Entry(fingerprint="0" * 12, code="HS201", title="mended", reason="r")
    baseline = written(tmp_path, of_one(*renewed(rest, NONE, RAN, STEP).entries(STEP), gone))
    held = hold(found, baseline, RAN, STEP)
    assert held.new == (first,)
    assert held.stale == (gone,)
    without = [c for c in RAN if c != "HS201"]
    assert hold(found, baseline, without, STEP).stale == (), "its rule did not run"


def test_a_new_baseline_keeps_reasons_and_the_entries_of_rules_that_did_not_run(found):
    old = [replace(e, reason="we know") for e in renewed(found[:1], NONE, RAN, STEP).entries(STEP)]
    mended = Entry(fingerprint="1" * 12, code="HS101", title="t", reason="r")
    plugin = Entry(fingerprint="2" * 12, code="ACME101", title="t", reason="r")
    older = of_one(*old, mended, plugin)
    entries = renewed(found, older, RAN, STEP).entries(STEP)
    assert len(entries) == len(found) + 1
    assert plugin in entries
    assert old[0] in entries
    assert mended not in entries
    moved = renewed(found[:1], older, RAN, OTHER)
    assert moved.entries(OTHER) == (old[0],), "a reason follows its finding to a step of another name"
    assert moved.entries(STEP) == older.entries(STEP)


@pytest.mark.parametrize("version", [1, 2])
def test_findings_below_no_step_are_accepted_in_any(version, found, tmp_path):
    one = replace(renewed(found, NONE, RAN, STEP).entries(STEP)[0], reason="why")
    other = replace(one, fingerprint="0" * 12)
    (tmp_path / "old.toml").write_text(
        f"version = {version}\n"
        + "".join(
            "[[finding]]\n" + "".join(f"{name} = {getattr(e, name)!r}\n" for name in Entry.__slots__)
            for e in (one, other)
        )
    )
    baseline = read_baseline(str(tmp_path / "old.toml"))
    assert baseline.entries(STEP) == baseline.entries(OTHER) == (one, other)
    held = hold(found, baseline, RAN, STEP)
    assert [s.reason for s in held.suppressed] == ["why"]
    assert held.stale == (), "another step may have it"
    newer = written(tmp_path, renewed(found, baseline, RAN, STEP))
    assert newer.unnamed == (one, other), "nothing is lost"
    assert len(newer.steps[STEP]) == len(found) - 1
    assert hold(found, newer, RAN, STEP).new == ()


def test_what_writing_drops_and_other_steps_are_told(found):
    older = renewed(found, NONE, RAN, STEP)
    newer = renewed(found[1:], older, RAN, STEP)
    assert [e.fingerprint for e in removed(older, newer, STEP)] == [found[0].fingerprint]
    assert removed(older, newer, OTHER) == ()
    assert hold(found, older, RAN, OTHER).others == (STEP,)
    assert hold(found, older, RAN, STEP).others == ()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(*[st.text(alphabet=st.characters(codec="utf-8"), min_size=1)] * 4))
def test_any_text_makes_a_file_that_can_be_read(texts):
    (step,) = tomllib.loads(to_toml(of_one(Entry(**dict(zip(Entry.__slots__, texts, strict=True))))))["step"]
    (table,) = step["finding"]
    assert (step["name"], step["topology"]) == ("train.py:step", "v6e:2x2")
    assert list(table) == list(Entry.__slots__)
    assert all(read == text for read, text in zip(table.values(), texts, strict=True) if text.isprintable())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 3", "is of version 3: a newer hloscope wrote it"),
        ("", "is no baseline, which has `version = 2`"),
        ("version = '2'", "is no baseline, which has `version = 2`"),
        (f"version = 2\nx = {'[' * 5000}", "nested too deeply"),
        (f"version = {'9' * 5000}", "is no TOML"),
        (
            "version = 2\n[[step]]\nname = 'a'\nowner = 'me'",
            "step 1 has 'owner'; it takes name, topology, finding",
        ),
        (
            "version = 2\n[[finding]]\nfingerprint = 'a'\ncode = 'HS101'\ntitle = 't'\nreason = 'r'\nby = 'me'",
            "finding 1 has 'by'; it takes fingerprint, code, title, reason",
        ),
        ("version = 2\nstep = 3", r"steps are tables, \[\[step\]\]"),
        ("version = 2\n[[step]]", "step 1 needs a text for name"),
        ("version = 2\n[[step]]\nname = 'a'\ntopology = 3", "step 1 needs a text for name, and for topology"),
        ("version = 2\n[[step]]\nname = 'a'\n[[step.finding]]", "finding 1 needs a text for fingerprint"),
        ("version = ", "is no TOML"),
        ("version = 1\nfinding = 3", r"findings are tables, \[\[finding\]\]"),
        ("version = 1\nfinding = [3]", r"findings are tables, \[\[finding\]\]"),
        (
            "version = 1\n[[finding]]\nfingerprint = 'a'\ncode = 'HS101'\ntitle = 't'\nreason = ' '",
            "finding 1 needs a text for reason",
        ),
    ],
)
def test_what_is_refused(text, message, tmp_path):
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_baseline(str(path))


def test_an_empty_file_may_be_renewed(tmp_path):
    (tmp_path / "b.toml").write_text("# to come\n")
    assert read_baseline(str(tmp_path / "b.toml"), renewing=True).steps == {}


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"there is no baseline .*no\.toml: write it with --write-baseline"):
        read_baseline(str(tmp_path / "no.toml"))
