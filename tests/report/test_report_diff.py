"""Diffs: nothing between equals, the same both ways, and what really differs between two compilers and shardings."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.errors import UserError
from hloscope.report.build import load
from hloscope.report.diff import Diff, compare
from hloscope.report.diff_match import BUFFERS, CENSUS, COLLECTIVES, FINDINGS, changes
from hloscope.report.diff_side import is_report, read_side, side_of
from hloscope.report.text_diff import signed
from hloscope.units import duration

SCHEMA = json.loads(resources.files("hloscope.report").joinpath("diff_schema.json").read_text())


@pytest.fixture(scope="module")
def report(dump_file):
    return cache(lambda name: load(dump_file(name)).to_dict())


@pytest.fixture(scope="module")
def side(report):
    return cache(lambda name: side_of(report(name), name))


def mirrored(diff: Diff) -> Diff:
    return replace(
        diff,
        before=diff.after,
        after=diff.before,
        settings=tuple(replace(d, before=d.after, after=d.before) for d in diff.settings),
        figures=tuple(replace(f, before=f.after, after=f.before) for f in diff.figures),
        **{
            name: tuple(c.mirrored() for c in getattr(diff, name))
            for name in ("buffers", "census", "collectives", "findings")
        },
    )


@pytest.mark.parametrize("name", ["deepseek", "qwen35_397b", "qwen3_30b", "dense", "oom", "moe_jax012"])
def test_nothing_differs_between_equals(name, side):
    diff = compare(side(name), side(name))
    assert diff.empty
    assert diff.regressions(0) == ()


@pytest.mark.parametrize(
    ("a", "b"), [("moe_jax010", "moe_jax012"), ("deepseek", "qwen35_397b"), ("dense", "oom")]
)
def test_the_other_way_is_the_mirror(a, b, side):
    diff = compare(side(a), side(b))
    assert compare(side(b), side(a)) == mirrored(diff)
    content = {**diff.to_dict(), "regressions": list(diff.regressions(0))}
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(content, allow_nan=False)))


@st.composite
def tables(draw, kind):
    texts, numbers = st.sampled_from(["a", "b", "c"]), st.none() | st.integers(0, 3)
    row = st.fixed_dictionaries(
        dict.fromkeys(kind.traits, texts)
        | dict.fromkeys(kind.figures, numbers)
        | {"op_name": st.sampled_from(["", "jit(s)/a/mul", "jit(s)/a_1/mul", "jit(s)/b/add"])}
    )
    return draw(st.lists(row, max_size=6))


@pytest.mark.parametrize(
    "kind", [BUFFERS, CENSUS, COLLECTIVES, FINDINGS], ids=["buffers", "census", "coll", "find"]
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tables(kind, data):
    a, b = data.draw(tables(kind)), data.draw(tables(kind))
    assert changes(kind, a, list(reversed(a))) == ()
    there = changes(kind, a, b)
    assert changes(kind, b, a) == tuple(c.mirrored() for c in there)
    # Every row of both sides is in one change at most, and what is in none is equal on both sides.
    for rows, name in ((a, "before"), (b, "after")):
        changed = [getattr(c, name) for c in there if getattr(c, name) is not None]
        assert len(changed) <= len(rows)
        assert all(row in rows for row in changed)
    assert len(a) - len([c for c in there if c.before]) == len(b) - len([c for c in there if c.after])


def test_two_compilers_of_one_step(side):
    diff = compare(side("moe_jax010"), side("moe_jax012"))
    figures = {f.name: (f.before, f.after) for f in diff.figures}
    assert {"arena", "total", "peak"} <= set(figures)
    assert "argument" not in figures
    assert all((f.delta or 0) > 0 for f in diff.figures if f.name in ("arena", "total", "peak"))
    gone = [c.before for c in diff.findings if c.before and not c.after]
    assert [row["title"][-30:] for row in gone if row["code"] == "HS102"] == [
        "copy backward bf16[32768,2048]"
    ]
    # The ring of experts is the same on both sides, though the older module does not name its axes.
    gathers = [c for c in diff.collectives if (c.after or c.before or {})["shape"] == "bf16[16384,2048]"]
    assert {c.status for c in gathers} <= {"changed"}
    assert any(r.startswith("peak ") for r in diff.regressions(0.01))
    assert not any(r.startswith("peak ") for r in diff.regressions(0.05))


def test_a_family_that_was_renamed_is_found_by_what_it_does():
    row = {
        "family": "mul",
        "kind": "fusion kLoop",
        "phase": "forward",
        "loop": None,
        "shape": "f32[8]",
        "thread": None,
        "count": 1,
        "executions": 1,
        "bytes": 64,
        "seconds": None,
        "op_name": "jit(step)/layer_1/mul",
    }
    other = row | {"family": "activation", "kind": "fusion kInput", "op_name": "jit(step)/layer_2/mul"}
    (change,) = changes(CENSUS, [row], [other])
    assert change.status == "changed"
    assert change.delta("bytes") == 0
    assert change.delta("seconds") is None
    (gone, new) = sorted(changes(CENSUS, [row], [other | {"phase": "backward"}]), key=lambda c: c.status)
    assert (gone.status, new.status) == ("gone", "new")


def test_unknown_figures_are_no_regression(report):
    base = report("dense")
    other = copy.deepcopy(base)
    other["memory"]["temp_bytes"] = 10**12
    diff = compare(side_of(base, "a"), side_of(other, "b"))
    (temp,) = diff.figures
    assert (temp.name, temp.before, temp.after, temp.delta) == ("temp", None, 10**12, None)
    assert diff.regressions(0) == ()


def test_times_are_compared_as_soon_as_they_are_known(report):
    base = copy.deepcopy(report("dense"))
    base["time"]["exposed_seconds"] = 0.0
    slower = copy.deepcopy(base)
    slower["time"]["exposed_seconds"] = 0.5
    diff = compare(side_of(base, "a"), side_of(slower, "b"))
    assert [(f.name, f.unit, f.after) for f in diff.figures] == [("exposed time", "seconds", 0.5)]
    assert diff.regressions(0.01) == ("exposed time 0 s → 500 ms",)


def test_a_time_that_leaves_something_out_is_not_compared_with_one_that_does_not(report):
    whole = copy.deepcopy(report("dense"))
    whole["time"] |= {"seconds": 9.0, "exposed_seconds": 1.0, "unknown": [], "is_at_least": False}
    part = copy.deepcopy(whole)
    part["time"] |= {
        "seconds": 3.0,
        "exposed_seconds": 0.1,
        "unknown": [{"opcode": "all-gather", "count": 2}],
        "is_at_least": True,
    }
    for before, after in ((whole, part), (part, whole)):
        diff = compare(side_of(before, "a"), side_of(after, "b"))
        assert {f.name for f in diff.figures} == {"time", "exposed time"}
        assert all(f.delta is None for f in diff.figures)
        assert diff.regressions(0) == ()
    longer = copy.deepcopy(part)
    longer["time"]["seconds"] = 4.0
    otherwise = copy.deepcopy(longer)
    otherwise["time"]["unknown"] = [{"opcode": "while", "count": 1}]
    (time,) = compare(side_of(part, "a"), side_of(otherwise, "b")).figures
    assert (time.name, time.before, time.after) == ("time", None, None)
    (time,) = compare(side_of(part, "a"), side_of(longer, "b")).figures
    assert (time.before, time.after) == (3.0, 4.0)


def test_new_warnings_are_regressions_and_accepted_ones_are_compared_too(report):
    base = report("deepseek")
    accepted = copy.deepcopy(base)
    accepted["suppressed"] = [{"finding": f, "reason": "r"} for f in accepted.pop("findings")]
    accepted["findings"] = []
    assert compare(side_of(base, "a"), side_of(accepted, "a")).empty
    clean = copy.deepcopy(base)
    clean["findings"] = []
    worse = compare(side_of(clean, "a"), side_of(base, "b")).regressions(0)
    assert len(worse) == sum(f["severity"] != "info" for f in base["findings"])
    assert compare(side_of(base, "a"), side_of(clean, "b")).regressions(0) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[" * 10**5, "is no JSON"),
        ("[]", "is no report of hloscope"),
        ('{"schema_version": 7}', "is no report of this hloscope"),
        ('{"schema_version": 1, "x": NaN}', "is no JSON: NaN is no JSON number"),
        ('{"schema_version": 1}', "is no whole report of hloscope: it lacks 'memory'"),
    ],
)
def test_files_that_are_no_reports(text, message, tmp_path: Path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_side(str(path))


@pytest.mark.parametrize(
    "name", ["memory", "target", "census", "collectives", "findings", "counts", "suppressed"]
)
@pytest.mark.parametrize("value", [None, 3, "x", [3], {"a": 1}])
def test_a_whole_part_that_is_damaged(name, value, report):
    report = dict(report("dense"))
    report[name] = value
    with pytest.raises(UserError, match="no whole report"):
        side_of(report, "r")


@pytest.mark.parametrize(
    ("table", "trait", "value"),
    [
        ("findings", "title", 5),
        ("findings", "code", {}),
        ("findings", "title", None),
        ("collectives", "mesh_axes", 5),
        ("collectives", "mesh_axes", [None]),
        ("collectives", "group_size", "8"),
        ("collectives", "group_size", True),
        ("census", "bytes", 10**400),
        ("census", "bytes", float("inf")),
        ("census", "family", []),
    ],
)
def test_a_value_that_is_damaged(table, trait, value, report):
    damaged = copy.deepcopy(report("dense"))
    damaged[table][0][trait] = value
    with pytest.raises(UserError, match="no whole report of hloscope: a value in it is of the wrong kind"):
        side_of(damaged, "r")


def test_a_compile_that_fails_now_is_a_regression(report):
    failed = copy.deepcopy(report("dense"))
    failed["target"]["status"] = "failed"
    now, then = side_of(failed, "b"), side_of(report("dense"), "a")
    assert compare(then, now).regressions(0) == ("the compile failed",)
    assert compare(now, then).regressions(0) == compare(now, now).regressions(0) == ()


def test_a_report_is_known_by_what_it_holds(report, tmp_path: Path):
    path = tmp_path / "main.report"
    path.write_text(json.dumps(report("dense"), indent=1))
    assert is_report(str(path))
    path.write_text("HloModule m")
    assert not is_report(str(path))


def narrower(report, *, factor, title=("bf16[4,4096,129280]", "bf16[4,4096,64640]")):
    """A report whose findings at one place have another array, and figures as much larger."""
    other = copy.deepcopy(report)
    for finding in other["findings"]:
        finding["fingerprint"] = finding["fingerprint"][::-1]
        finding["title"] = finding["title"].replace(*title).replace("7168", "3584").replace("2048", "1024")
        for name in ("bytes", "saved_bytes", "saved_seconds", "held_bytes"):
            finding[name] = None if finding[name] is None else type(finding[name])(finding[name] * factor)
    return other


def test_a_finding_of_another_width_has_changed_and_is_worse_only_if_it_costs_more(report):
    base = report("deepseek")
    half = narrower(base, factor=0.5)
    diff = compare(side_of(base, "a"), side_of(half, "b"))
    serious = [f for f in base["findings"] if f["severity"] != "info"]
    assert {c.status for c in diff.findings} == {"changed"}
    assert len(diff.findings) == len(base["findings"])
    assert diff.regressions(0) == ()
    assert len(compare(side_of(half, "b"), side_of(base, "a")).regressions(0)) == len(serious)
    more = compare(side_of(base, "a"), side_of(narrower(base, factor=1.02), "b"))
    assert len(more.regressions(0.01)) == len(serious)
    assert more.regressions(0.03) == ()
    text = diff.to_text(everything=True)
    assert "was: HS" not in text
    assert "was: bf16[4,4096,129280] waits through a loop" in text
    assert " held at the peak → " in text
    assert diff.to_html(0)


def test_a_finding_elsewhere_is_new(report):
    base = report("deepseek")
    (index,) = [i for i, f in enumerate(base["findings"]) if f["code"] == "HS301"]
    for name, value in (("phase", "forward"), ("code", "HS302")):
        other = narrower(base, factor=1)
        other["findings"] = [other["findings"][index] | {name: value}]
        only = dict(base) | {"findings": [base["findings"][index]]}
        diff = compare(side_of(only, "a"), side_of(other, "b"))
        assert sorted(c.status for c in diff.findings) == ["gone", "new"]
        assert len(diff.regressions(0)) == 1
    moved = narrower(base, factor=1)
    moved["findings"] = [
        moved["findings"][index]
        | {"op_name": "jit(step)/transpose(jvp())/elsewhere/mul", "source": "other.py:1"}
    ]
    assert {c.status for c in compare(side_of(only, "a"), side_of(moved, "b")).findings} == {"gone", "new"}


def test_a_remark_that_has_become_a_warning_is_worse(report):
    base = report("deepseek")
    other = copy.deepcopy(base)
    raised = next(f for f in other["findings"] if f["severity"] == "info")
    raised["severity"] = "warning"
    (worse,) = compare(side_of(base, "a"), side_of(other, "b")).regressions(0)
    assert worse == f"{raised['code']} {raised['title']}: info → warning"


def test_what_one_side_cannot_know_is_not_compared(report, dump_file):
    """The text of the same module has no buffer assignment; a dump without its topology has no times."""
    text = load(dump_file("dense").with_name("qwen3_0p6b_dense.txt.gz")).to_dict()
    proto = report("dense")
    assert set(proto["rules"]) - set(text["rules"]) >= {"HS301", "HS305", "HS307", "HS308"}
    for sides in ((text, proto), (proto, text)):
        diff = compare(*(side_of(s, "s") for s in sides))
        assert (diff.findings, diff.buffers) == ((), ())
        assert diff.regressions(0) == ()
        assert diff.not_compared == ("HS301", "HS308")
        assert not diff.empty
        assert "HS301, HS308 not compared: not run on one side, or without what" in diff.to_text()
        assert "HS301, HS308 not compared" in diff.to_html(0)
    timed = load(dump_file("dense"), topology="v6e:2x4").to_dict()
    diff = compare(side_of(proto, "a"), side_of(timed, "b"))
    assert diff.regressions(0) == ()
    assert diff.not_compared == ("HS206",)


def test_reports_of_an_hloscope_that_did_not_tell_its_rules_are_compared_whole(report):
    base = report("deepseek")
    older = {k: v for k, v in base.items() if k != "rules"}
    older["findings"] = [
        {k: v for k, v in f.items() if k not in ("phase", "op_name")} for f in base["findings"][1:]
    ]
    diff = compare(side_of(older, "a"), side_of(base, "b"))
    assert [c.status for c in diff.findings] == ["new"]
    for wrong in (3, "HS101", [3], None):
        with pytest.raises(UserError, match="no whole report"):
            side_of(base | {"rules": wrong}, "r")


def test_the_mesh_is_told_in_words(report):
    other = copy.deepcopy(report("dense"))
    other["target"]["mesh"] = {"fsdp": 2, "expert": 4}
    text = compare(side_of(report("dense"), "a"), side_of(other, "b")).to_text()
    assert "fsdp 2 × expert 4" in text
    assert "{" not in text


def test_what_one_side_does_not_know_has_not_changed(report):
    known = report("moe_jax012")
    unknown = copy.deepcopy(known)
    for row in unknown["collectives"]:
        row["mesh_axes"] = row["group_size"] = row["seconds"] = row["exposed_seconds"] = None
    assert any(row["mesh_axes"] for row in known["collectives"])
    assert compare(side_of(known, "a"), side_of(unknown, "b")).collectives == ()
    assert compare(side_of(unknown, "b"), side_of(known, "a")).collectives == ()
    unknown["collectives"][0]["bytes"] += 1
    assert len(compare(side_of(known, "a"), side_of(unknown, "b")).collectives) == 1


def test_a_difference_too_small_for_digits_has_no_sign():
    assert [signed(v, duration) for v in (-1e-12, -1e-3, 1e-3)] == ["< 0.01 ns", "−1.00 ms", "+1.00 ms"]
