"""Baselines: written, read, edited, and held against what is found."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.analysis.bundle import Analyses
from hloscope.engine import load_rules, run_rules
from hloscope.errors import UserError
from hloscope.report.baseline import Baseline, Entry, hold, read_baseline, renewed, to_toml

RAN = tuple(r.code for r in load_rules())


@pytest.fixture
def found(shared_dump):
    return run_rules(Analyses.of_file(shared_dump("deepseek")))


def written(tmp_path, entries):
    path = tmp_path / "baseline.toml"
    path.write_text(to_toml(entries), encoding="utf-8")
    return read_baseline(str(path))


def test_what_is_written_accepts_what_there_was(found, tmp_path):
    baseline = written(tmp_path, renewed(found, None, RAN))
    held = hold(found, baseline, RAN)
    assert (held.new, held.stale) == ((), ())
    assert [s.finding for s in held.suppressed] == list(found)
    assert {s.reason for s in held.suppressed} == {"known when this baseline was written"}


def test_new_findings_and_stale_entries(found, tmp_path):
    first, *rest = found
    gone = Entry(fingerprint="0" * 12, code="HS201", title="mended", reason="r")
    baseline = written(tmp_path, (*renewed(rest, None, RAN), gone))
    held = hold(found, baseline, RAN)
    assert held.new == (first,)
    assert held.stale == (gone,)
    assert hold(found, baseline, [c for c in RAN if c != "HS201"]).stale == (), "its rule did not run"


def test_a_new_baseline_keeps_reasons_and_the_entries_of_rules_that_did_not_run(found, tmp_path):
    old = tuple(replace(e, reason="we know") for e in renewed(found[:1], None, RAN))
    mended = Entry(fingerprint="1" * 12, code="HS101", title="t", reason="r")
    other = Entry(fingerprint="2" * 12, code="ACME101", title="t", reason="r")
    entries = renewed(found, Baseline(path="", entries=(*old, mended, other)), RAN)
    assert len(entries) == len(found) + 1
    assert other in entries
    assert old[0] in entries
    assert mended not in entries


@given(st.tuples(*[st.text(alphabet=st.characters(codec="utf-8"), min_size=1)] * 4))
def test_any_text_makes_a_file_that_can_be_read(texts):
    (table,) = tomllib.loads(to_toml([Entry(**dict(zip(Entry.__slots__, texts, strict=True)))]))["finding"]
    assert list(table) == list(Entry.__slots__)
    assert all(read == text for read, text in zip(table.values(), texts, strict=True) if text.isprintable())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "has no `version = 1`: write one with --write-baseline"),
        ("", "has no `version = 1`"),
        ("version = ", "is no TOML"),
        ("version = 1\nfinding = 3", r"findings are tables, \[\[finding\]\]"),
        ("version = 1\nfinding = [3]", "finding 1 needs a text for fingerprint"),
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


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the baseline .*no\.toml: No such file"):
        read_baseline(str(tmp_path / "no.toml"))
