"""Plans as files: what is written is read again, and what is no plan is told apart."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloscope.errors import UserError
from hloscope.plan import (
    BeforeLoop,
    LogicalRules,
    LoopUpdate,
    MoveAxis,
    Plan,
    ValidRows,
    from_fields,
    to_fields,
)

NAMES = st.text(max_size=8)
SOME = st.lists(NAMES, min_size=1).map(tuple)
AXES = st.one_of(st.none(), NAMES, st.lists(NAMES, min_size=2, max_size=3).map(tuple))
ACTIONS = st.one_of(
    st.builds(ValidRows, clusters=SOME),
    st.builds(
        MoveAxis,
        parameter=NAMES,
        shape=st.lists(st.integers(1, 1 << 40), max_size=4).map(tuple),
        axes=st.lists(NAMES, min_size=1, max_size=2).map(tuple),
        source=st.integers(0, 3),
        target=st.integers(0, 3),
    ),
    st.builds(LoopUpdate, parameters=SOME),
    st.builds(BeforeLoop, work=SOME),
    st.builds(LogicalRules, name=NAMES, changes=st.dictionaries(NAMES, AXES, min_size=1, max_size=3)),
)
PLANS = st.builds(
    Plan, actions=st.lists(ACTIONS, max_size=3).map(tuple), step=st.none() | NAMES, topology=st.none() | NAMES
)

# How fast values are drawn says nothing here.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

MOVE = MoveAxis(parameter="params['wo']", shape=(8, 32, 64), axes=("fsdp",), source=2, target=1)


@patient
@given(PLANS)
def test_fields_hold_the_whole_plan(plan: Plan) -> None:
    assert from_fields(to_fields(plan)) == plan


@patient
@given(PLANS)
def test_toml_holds_the_whole_plan(plan: Plan) -> None:
    import tomli_w

    assert from_fields(tomllib.loads(tomli_w.dumps(to_fields(plan)))) == plan


def test_a_file_holds_the_whole_plan_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("an older plan")
    plan = Plan(actions=(MOVE,), step="train.py:step", topology="v5e:2x4")
    plan.save(path)
    assert Plan.load(path) == plan
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its format is None"),
        ("format = 2", "its format is 2"),
        ("format = 1\ncolour = 'red'", "unknown field 'colour'"),
        ("format = 1\nstep = 3", "its step cannot be 3"),
        ("format = 1\naction = 3", "its actions are no list"),
        ("format = 1\n[[action]]\nkind = 'magic'", "no kind of action 'magic'"),
        (
            "format = 1\n[[action]]\nkind = 'valid-rows'",
            "'valid-rows' has no 'clusters': its fields are clusters",
        ),
        (
            "format = 1\n[[action]]\nkind = 'before-loop'\nwork = ['a']\nloop = 1",
            "'before-loop' has an unknown field 'loop': its fields are work",
        ),
        ("format = 1\n[[action]]\nkind = 'valid-rows'\nclusters = []", "its clusters cannot be []"),
        ("format = 1\n[[action]]\nkind = 'loop-update'\nparameters = []", "its parameters cannot be []"),
        ("format = 1\n[[action]]\nkind = 'rules'\nname = 'a'\nchanges = {}", "its changes cannot be {}"),
        ("format = 1\n[[action]]\nkind = 'valid-rows'\nclusters = 'a'", "its clusters cannot be 'a'"),
        ("format = 1\n[[action]]\nkind = 'valid-rows'\nclusters = [1]", "its clusters cannot be"),
    ],
)
def test_a_file_that_is_no_plan(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UserError, match="is no plan of hloscope") as error:
        Plan.load(path)
    assert why in str(error.value)


def test_a_plan_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the plan"):
        Plan.load(tmp_path / "none.toml")
    (tmp_path / "plan.toml").write_text("format = ")
    with pytest.raises(UserError, match=r"the plan .*plan\.toml is no TOML: Invalid value"):
        Plan.load(tmp_path / "plan.toml")
    with pytest.raises(UserError, match="cannot write the plan"):
        Plan().save(tmp_path / "nowhere" / "plan.toml")


def test_rules_are_changed_only_where_there_are_some() -> None:
    plan = Plan(actions=(LogicalRules(name="out", changes={"mlp_out": "fsdp", "embed_out": None}),))
    rules = {"mlp_out": None, "embed_out": "fsdp", "heads": "tensor"}
    assert plan.rules(rules) == {"mlp_out": "fsdp", "embed_out": None, "heads": "tensor"}
    with pytest.raises(
        UserError, match=r"the plan no longer fits: rule set out.* no logical axis 'embed_out'"
    ):
        plan.rules({"mlp_out": None})
