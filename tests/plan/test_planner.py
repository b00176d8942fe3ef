"""The planner without a compiler: what is tried, what is kept, and why, on recorded figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hloscope as hs
from hloscope.plan import BeforeLoop, LogicalRules, LoopUpdate, MoveAxis, Plan, ValidRows
from hloscope.planner.candidates import (
    MOVE_CODES,
    ROWS_CODES,
    UPDATE_CODES,
    WAITING_CODES,
    Array,
    Candidate,
    Cluster,
    Described,
    Prediction,
    Updated,
    Waiting,
    candidates,
)
from hloscope.planner.judge import gain, judge
from hloscope.planner.measured import Measured, Tally, by_code, measure
from hloscope.planner.search import Outcome, search
from hloscope.rule import Finding, Severity

GIB = 1 << 30

BEFORE = Measured(
    temp_bytes=100 * GIB,
    arena_bytes=80 * GIB,
    peak_bytes=90 * GIB,
    total_bytes=95 * GIB,
    seconds=None,
    hbm_bytes=1000 * GIB,
    fusions=Tally(count=32, bytes=300 * GIB),
    copies=Tally(count=9, bytes=40 * GIB),
    kernels=Tally(),
    collectives=Tally(count=50, bytes=70 * GIB),
    findings={"HS101": Tally(count=16, bytes=300 * GIB), "HS201": Tally(count=4, bytes=8 * GIB)},
)


def found(code: str, saved: int | None = None, **facts: Any) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        title=code,
        instructions=(),
        places=4,
        source=None,
        executions=1,
        bytes=8 * GIB,
        saved_bytes=saved,
        saved_seconds=None,
        fix="none",
        advice="",
        facts=facts,
    )


def candidate(action: Any, *codes: str, group: str = "") -> Candidate:
    prediction = Prediction(sites=4, saved_bytes=None, saved_seconds=None)
    return Candidate(
        action=action, codes=codes, group=group or action.title, safe=True, prediction=prediction
    )


ROWS = candidate(ValidRows(clusters=("a", "b")), "HS101")
MOVE = MoveAxis(parameter="wo", shape=(64, 1024, 4096), axes=("fsdp",), source=2, target=1)
MESH = candidate(MOVE, "HS201", group="wo")
OTHER_MESH = candidate(replace(MOVE, target=0), "HS201", group="wo")

FEWER_FUSIONS = replace(
    BEFORE, fusions=Tally(count=8, bytes=70 * GIB), copies=Tally(), temp_bytes=97 * GIB, peak_bytes=89 * GIB
)
NO_TRANSPOSE = replace(BEFORE, findings={"HS101": BEFORE.findings["HS101"]}, hbm_bytes=992 * GIB)


# What is kept.


def test_a_change_that_reaches_its_aim_and_harms_nothing_is_kept() -> None:
    assert judge(BEFORE, FEWER_FUSIONS, ["HS101"], objective="temp").kept
    verdict = judge(BEFORE, NO_TRANSPOSE, ["HS201"], objective="temp")
    assert (verdict.kept, verdict.reason) == (True, "HS201: 4 (8.0 GiB) → none")


def test_a_change_that_misses_its_aim_is_rejected_whatever_else_it_saves() -> None:
    after = replace(BEFORE, temp_bytes=50 * GIB)
    for codes in (["HS201"], ["HS101"]):
        assert not judge(BEFORE, after, codes, objective="temp").kept
    assert judge(BEFORE, after, ["HS201"], objective="temp").reason == "HS201: 4 (8.0 GiB) → 4 (8.0 GiB)"


@pytest.mark.parametrize("name", ["temp", "arena", "peak", "total"])
def test_a_figure_that_grows_beyond_the_tolerance_is_named(name: str) -> None:
    grown = {f"{name}_bytes": round(1.03 * getattr(BEFORE, f"{name}_bytes"))}
    verdict = judge(BEFORE, replace(NO_TRANSPOSE, **grown), ["HS201"], objective="temp")
    assert not verdict.kept
    assert f"{name} " in verdict.reason
    assert "+3.0%" in verdict.reason
    within = {f"{name}_bytes": round(1.004 * getattr(BEFORE, f"{name}_bytes"))}
    assert judge(BEFORE, replace(NO_TRANSPOSE, **within), ["HS201"], objective="temp").kept


def test_new_copies_of_whole_buffers_are_never_accepted() -> None:
    after = replace(FEWER_FUSIONS, copies=Tally(count=10, bytes=GIB))
    verdict = judge(BEFORE, after, ["HS101"], objective="temp")
    assert (verdict.kept, verdict.reason) == (False, "worse: full-buffer copies 9 → 10")


def test_memory_may_be_traded_for_time_only_when_time_is_wanted() -> None:
    before = replace(BEFORE, seconds=10.0)
    after = replace(NO_TRANSPOSE, seconds=9.0, temp_bytes=round(101.5 * GIB))
    assert judge(before, after, ["HS201"], objective="time").kept
    assert not judge(before, after, ["HS201"], objective="temp").kept
    slower = replace(NO_TRANSPOSE, seconds=9.95, temp_bytes=round(101.5 * GIB))
    assert not judge(before, slower, ["HS201"], objective="time").kept, "it loses more than it gains"


def test_how_much_may_be_traded_can_be_told() -> None:
    before = replace(BEFORE, seconds=10.0)
    faster = replace(NO_TRANSPOSE, seconds=8.0, temp_bytes=round(108 * GIB))
    assert judge(before, faster, ["HS201"], objective="time").reason.startswith("worse: temp")
    assert judge(before, faster, ["HS201"], objective="time", trade=0.1).kept
    assert not judge(before, faster, ["HS201"], objective="temp", trade=0.1).kept, "temp is what is wanted"
    much_faster = replace(faster, seconds=2.0)
    assert judge(before, much_faster, ["HS201"], objective="time").kept, "a tenth of what is saved"
    assert not judge(before, much_faster, ["HS201"], objective="time", trade=0.01).kept
    (trial,) = search(before, [MESH], lambda plans: [faster for _ in plans], "time", trade=0.1).trials
    assert trial.verdict.kept


def test_where_much_is_saved_a_tenth_of_it_may_be_lost() -> None:
    before = replace(BEFORE, seconds=10.0)
    half = replace(NO_TRANSPOSE, temp_bytes=50 * GIB, seconds=10.4)
    assert judge(before, half, ["HS201"], objective="temp").kept
    assert not judge(before, replace(half, seconds=10.6), ["HS201"], objective="temp").kept
    assert not judge(before, half, ["HS201"], objective="time").kept, "time is wanted, and it is lost"
    assert not judge(before, replace(half, temp_bytes=75 * GIB), ["HS201"], objective="temp").kept


def test_an_unknown_figure_is_neither_better_nor_worse() -> None:
    before, after = replace(BEFORE, temp_bytes=None), replace(NO_TRANSPOSE, temp_bytes=200 * GIB)
    assert judge(before, after, ["HS201"], objective="temp").kept
    assert gain(before, after, "temp") == 0.0, "ranked by the arena, which is the same"
    assert gain(replace(BEFORE, hbm_bytes=None), NO_TRANSPOSE, "time") == 0.0


def test_a_compile_that_fails_is_rejected_and_one_that_fits_at_last_is_kept() -> None:
    failed = replace(BEFORE, failed="the step does not fit")
    assert judge(BEFORE, failed, ["HS101"], objective="temp").reason == "the step does not fit"
    assert judge(failed, FEWER_FUSIONS, ["HS101"], objective="temp").kept
    assert not judge(failed, failed, ["HS101"], objective="temp").kept


# How they are tried.

BOTH = replace(FEWER_FUSIONS, findings=NO_TRANSPOSE.findings, temp_bytes=96 * GIB)


def tried(outcomes: Mapping[Any, Measured | str], *chosen: Candidate) -> tuple[Outcome, list[Plan]]:
    """Search with recorded outcomes by the plan's actions; everything that was compiled, in order."""
    plans: list[Plan] = []

    def attempt(wanted: Sequence[tuple[Plan, str]]) -> list[Measured | str]:
        plans.extend(plan for plan, _ in wanted)
        return [outcomes[plan.actions] for plan, _ in wanted]

    return search(BEFORE, chosen, attempt, "temp"), plans


def test_what_helps_alone_is_compiled_together() -> None:
    record = {(ROWS.action,): FEWER_FUSIONS, (MOVE,): NO_TRANSPOSE, (MOVE, ROWS.action): BOTH}
    outcome, plans = tried(record, ROWS, MESH)
    assert outcome.after is BOTH
    assert outcome.plan.actions == (MOVE, ROWS.action), "shardings first, kernels last"
    assert outcome.together is not None
    assert outcome.together.kept
    assert len(plans) == 3


def test_a_rejected_one_is_not_compiled_again() -> None:
    outcome, plans = tried({(ROWS.action,): FEWER_FUSIONS, (MOVE,): BEFORE}, ROWS, MESH)
    assert [t.verdict.kept for t in outcome.trials] == [True, False]
    assert (outcome.after, outcome.together, len(plans)) == (FEWER_FUSIONS, None, 2)
    assert outcome.plan.actions == (ROWS.action,)


DOES_NOT_FIT = replace(BEFORE, temp_bytes=None, failed="the step does not fit: it needs 96 GiB")
NEARER = replace(DOES_NOT_FIT, arena_bytes=70 * GIB, failed="the step does not fit: it needs 86 GiB")


def brought_down(together: Measured | str, *alone: Measured) -> tuple[Outcome, list[Plan]]:
    """A step that does not fit, two actions that are tried on it, and the two together."""
    plans: list[Plan] = []
    record = dict(zip([(ROWS.action,), (MOVE,)], alone, strict=True)) | {(MOVE, ROWS.action): together}

    def attempt(wanted: Sequence[tuple[Plan, str]]) -> list[Measured | str]:
        plans.extend(plan for plan, _ in wanted)
        return [record[plan.actions] for plan, _ in wanted]

    return search(DOES_NOT_FIT, [ROWS, MESH], attempt, "time"), plans


def test_what_is_not_enough_alone_may_bring_a_step_down_together() -> None:
    outcome, plans = brought_down(BOTH, NEARER, NEARER)
    assert (outcome.after, len(plans)) == (BOTH, 3)
    assert outcome.plan.actions == (MOVE, ROWS.action)
    assert [t.verdict.kept for t in outcome.trials] == [True, True]
    assert outcome.trials[0].verdict.reason == "nearer to what the chip has, but not enough alone"
    assert outcome.together is not None
    assert outcome.together.kept


def test_a_step_that_nothing_brings_down_says_what_it_needs_still() -> None:
    outcome, _ = brought_down(
        replace(NEARER, failed="the step does not fit: it needs 76 GiB"), NEARER, NEARER
    )
    assert (outcome.after, outcome.plan.actions) == (None, ())
    assert [t.verdict.kept for t in outcome.trials] == [False, False]
    assert outcome.together is not None
    assert outcome.together.reason == "together they do not either: the step does not fit: it needs 76 GiB"


def test_only_what_needs_less_is_tried_together() -> None:
    outcome, plans = brought_down(BOTH, NEARER, DOES_NOT_FIT)
    assert (outcome.after, outcome.together, len(plans)) == (None, None, 2)


def test_nothing_kept_is_no_plan() -> None:
    outcome, _ = tried({(MOVE,): "the plan no longer fits"}, MESH)
    assert (outcome.after, outcome.plan.actions) == (None, ())
    assert outcome.trials[0].verdict.reason == "the plan no longer fits"
    assert tried({})[0].after is None


def test_of_two_places_for_one_axis_the_better_one_is_kept() -> None:
    better = replace(NO_TRANSPOSE, temp_bytes=98 * GIB)
    outcome, plans = tried({(MOVE,): NO_TRANSPOSE, (OTHER_MESH.action,): better}, MESH, OTHER_MESH)
    assert outcome.plan.actions == (OTHER_MESH.action,)
    assert "gains more" in outcome.trials[0].verdict.reason
    assert len(plans) == 2


def test_what_does_not_go_together_is_left_out_and_told() -> None:
    clash = replace(BOTH, peak_bytes=99 * GIB)
    record = {(ROWS.action,): FEWER_FUSIONS, (MOVE,): NO_TRANSPOSE, (MOVE, ROWS.action): clash}
    outcome, _ = tried(record, ROWS, MESH)
    assert outcome.plan.actions == (ROWS.action,), "the one that saves most memory"
    assert outcome.after is FEWER_FUSIONS
    assert outcome.together is not None
    assert "peak" in outcome.together.reason
    assert [t.verdict.kept for t in outcome.trials] == [True, False]


def test_of_three_the_two_that_go_together_are_found() -> None:
    wi = candidate(replace(MOVE, parameter="wi"), "HS201")
    third = replace(NO_TRANSPOSE, temp_bytes=99 * GIB)
    clash = replace(BOTH, peak_bytes=99 * GIB)
    record = {
        (ROWS.action,): FEWER_FUSIONS,
        (MOVE,): NO_TRANSPOSE,
        (wi.action,): third,
        (wi.action, MOVE, ROWS.action): clash,
        (wi.action, ROWS.action): clash,
        (MOVE, ROWS.action): BOTH,
    }
    outcome, plans = tried(record, ROWS, MESH, wi)
    assert outcome.plan.actions == (MOVE, ROWS.action)
    assert outcome.after is BOTH
    assert len(plans) == 6


# What is proposed.

MESH_SIZES = {"fsdp": 16, "expert": 8}


def array(name: str, shape: tuple[int, ...], *axes: tuple[str, ...], donated: bool = True) -> Array:
    return Array(name=name, shape=shape, axes=axes, donated=donated, twins=(name,))


def described(*arrays: Array, clusters: tuple[Cluster, ...] = (), **rule_sets: Any) -> Described:
    return Described(arrays=arrays, mesh=MESH_SIZES, rule_sets=rule_sets, clusters=clusters)


LOOPS = replace(
    described(),
    updates=(
        Updated(parameter="wi", shape=(60, 8), refusal=None, proof=("it keeps layers apart",)),
        Updated(parameter="wo", shape=(60, 8), refusal="the norm of all", proof=()),
    ),
    waiting=(Waiting(key="dot_general/f32[8,8]/model.py:1", proof=("it dies",)),) * 2,
)


def test_loops_are_changed_for_their_findings_alone() -> None:
    actions = [c.action for c in candidates([found("HS309"), found("HS301")], LOOPS)]
    assert actions == [LoopUpdate(parameters=("wi",)), BeforeLoop(work=("dot_general/f32[8,8]/model.py:1",))]
    assert [type(c.action) for c in candidates([found("HS301")], LOOPS)] == [BeforeLoop]
    assert candidates([found("HS101")], LOOPS) == []
    assert candidates([found("HS309"), found("HS301")], described()) == []


def test_proofs_say_what_may_go_and_what_may_not() -> None:
    verdicts = dict(LOOPS.proofs)
    assert verdicts["wi: can be updated in the backward loop"] == ("it keeps layers apart",)
    assert "wo: left as it is: the norm of all" in verdicts
    assert verdicts["dot_general/f32[8,8]/model.py:1: can be done before the loop"] == ("it dies",)


WO = array("wo", (60, 512, 1024, 4096), (), ("expert",), (), ("fsdp",))
WI = array("wi", (60, 512, 4096, 2048), (), ("expert",), ("fsdp",), ())


class _Value:
    """As much of an instruction as the planner looks at."""

    def __init__(self, *dimensions: int) -> None:
        from hloscope.hlo import Shape

        self.shape = Shape("bf16", dimensions, element_bits=16)


def hs201(*dimensions: int) -> Finding:
    finding = found("HS201", saved=8 * GIB, mesh_axes=["fsdp"])
    return replace(finding, instructions=(_Value(*dimensions),))  # type: ignore[arg-type]


def moves(finding: Finding, told: Described) -> list[tuple[str, int, int]]:
    actions = [c.action for c in candidates([finding], told)]
    return [(a.parameter, a.source, a.target) for a in actions if isinstance(a, MoveAxis)]


@pytest.mark.parametrize("value", [(64, 1024, 4096), (1, 64, 1024, 4096)])
def test_the_gradient_of_one_layer_names_its_parameter(value: tuple[int, ...]) -> None:
    assert moves(hs201(*value), described(WI, WO)) == [("wo", 3, 2)], "experts are sharded already"


def test_a_gradient_that_the_compiler_split_and_turned_is_known_by_its_size() -> None:
    told = described(array("w", (64, 1024, 4096), (), ("fsdp",), ()))
    assert moves(hs201(16, 64, 64, 4096), told) == [("w", 1, 0), ("w", 1, 2)]


def test_a_shape_of_its_own_goes_before_a_size_alone() -> None:
    told = described(
        array("turned", (1024, 64, 4096), (), (), ("fsdp",)), array("w", (64, 1024, 4096), (), (), ("fsdp",))
    )
    assert {name for name, *_ in moves(hs201(64, 1024, 4096), told)} == {"w"}


def test_what_shares_the_place_is_moved_once() -> None:
    twins = ("params.w", "mean.w")
    told = described(*(replace(WO, name=name, twins=twins) for name in twins))
    assert moves(hs201(64, 1024, 4096), told) == [("params.w", 3, 2)]


def test_an_array_that_is_not_replaced_has_no_gradient() -> None:
    assert moves(hs201(64, 1024, 4096), described(replace(WO, donated=False))) == []
    assert moves(hs201(64, 1024, 4097), described(WO)) == []


def test_a_sharded_dimension_is_tried_where_no_other_can_be_divided() -> None:
    told = described(array("w", (512, 1030, 4096), ("expert",), (), ("fsdp",)))
    assert moves(hs201(64, 1030, 4096), told) == [("w", 2, 0)]


def test_only_proved_clusters_are_tried_and_only_for_a_finding() -> None:
    clusters = tuple(
        Cluster(key=key, kernel="glu_rows", refusal=why, proof=())
        for key, why in (("a", None), ("b", "a row sum reads it"), ("a", None))
    )
    (only,) = candidates([found("HS101", saved=GIB), found("HS102")], described(clusters=clusters))
    assert only.action == ValidRows(clusters=("a",))
    assert (only.codes, only.safe) == (("HS101", "HS102"), True)
    assert only.prediction == Prediction(sites=8, saved_bytes=None, saved_seconds=None), "one is unknown"
    assert candidates([], described(clusters=clusters)) == []
    assert candidates([found("HS101")], described(clusters=clusters[1:2])) == []


def test_offered_rule_sets_are_tried_and_are_not_safe_by_themselves() -> None:
    told = described(WO, out={"mlp_out": "fsdp"})
    rules, move = candidates([hs201(64, 1024, 4096)], told)
    assert (rules.action, rules.safe) == (LogicalRules(name="out", changes={"mlp_out": "fsdp"}), False)
    assert (move.safe, move.prediction.saved_bytes) == (True, 8 * GIB)


# What is measured.


def test_the_estimate_and_valid_rows_are_measured(dump_file: Callable[[str], Path]) -> None:
    path = dump_file("moe_jax012")
    whole, half = (
        measure(hs.load(path, topology="tpu7x:2x2x1", valid_fraction=share)) for share in (1.0, 0.5)
    )
    assert whole.seconds is not None
    assert half.seconds is not None
    assert half.seconds < whole.seconds, "grouped matmuls skip dead rows"
    assert half.hbm_bytes is not None
    assert whole.hbm_bytes is not None
    assert half.hbm_bytes < whole.hbm_bytes
    assert half.fusions == whole.fusions, "fusions do not"
    assert measure(hs.load(path)).seconds is None, "no chip, no time"


def test_rules_say_which_findings_have_an_action(dump_file: Callable[[str], Path]) -> None:
    found = [f for name in ("moe_jax012", "qwen35_397b") for f in hs.load(dump_file(name)).findings]
    mended = {f.code for f in found if f.fix != "none"}
    assert mended == {"HS101", "HS102", "HS103", "HS201", "HS301", "HS309"}
    assert mended == ROWS_CODES | MOVE_CODES | UPDATE_CODES | WAITING_CODES


COPIES = """HloModule copies, is_scheduled=true

ENTRY main {
  sizes = s32[8]{0} parameter(0)
  x = bf16[4096,512]{1,0} parameter(1)
  w = bf16[8,512,512]{2,1,0} parameter(2)
  turned = bf16[4096,512]{0,1} copy(x)
  near = (bf16[4096,512]{0,1:S(1)}, bf16[4096,512]{0,1}, u32[]{:S(2)}) copy-start(turned)
  there = bf16[4096,512]{0,1:S(1)} copy-done(near)
  y = bf16[4096,512]{1,0} custom-call(sizes, there, w), custom_call_target="tpu_custom_call"
  ROOT z = bf16[4096,512]{0,1} copy(y)
}
"""


def test_a_copy_to_vmem_is_no_copy_of_the_buffer(tmp_path: Path) -> None:
    path = tmp_path / "copies.txt"
    path.write_text(COPIES)
    measured = measure(hs.load(path), frozenset({4096}))
    assert measured.copies == Tally(count=2, bytes=4 * 4096 * 512 * 2)


def test_what_waits_is_judged_by_what_it_holds():
    """A buffer that waits moves nothing: half of it waiting is less, though it is one place as before."""

    def held(size: int) -> Measured:
        waiting = replace(found("HS301"), bytes=None, held_bytes=size)
        return replace(BEFORE, findings=by_code([waiting]), temp_bytes=99 * GIB)

    verdict = judge(held(4 * GIB), held(2 * GIB), ["HS301"], objective="temp")
    assert verdict.kept
    assert verdict.reason == "HS301: 4 (4.0 GiB) → 4 (2.0 GiB)"
    assert not judge(held(2 * GIB), held(2 * GIB), ["HS301"], objective="temp").kept
