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
