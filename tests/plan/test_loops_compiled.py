"""Loops changed in a step that is compiled for a TPU: what waited for them is gone from the peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.capture.launch import ask_step
from hloscope.plan import BeforeLoop, LoopUpdate, to_fields
from hloscope.planner.run import Options, Planner, carry_out, propose
from hloscope.planner.search import Outcome

STEP = str(Path(__file__).parents[1] / "steps" / "stacked_layers.py")

pytestmark = pytest.mark.tpu_compile


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    options = Options(select=("HS301", "HS309"))
    planner = Planner(target=STEP, options=options, begin=lambda number, what: None)
    return carry_out(planner, propose(planner))


def test_both_findings_have_an_action_that_is_kept(outcome: Outcome) -> None:
    kinds = {type(t.candidate.action): t for t in outcome.trials}
    assert set(kinds) == {LoopUpdate, BeforeLoop}
    for trial in outcome.trials:
        assert trial.verdict.kept, trial.verdict.reason
    assert outcome.after is not None
    assert not {"HS301", "HS309"} & set(outcome.after.findings)


def test_the_stacks_of_gradients_are_gone_from_memory(outcome: Outcome) -> None:
    (trial,) = [t for t in outcome.trials if isinstance(t.candidate.action, LoopUpdate)]
    assert trial.after is not None
    # Twelve layers of two matrices [2048, 8192] in f32, over four devices.
    stacks = 12 * 2 * 2048 * 8192 * 4 // 4
    for name in ("temp_bytes", "arena_bytes", "peak_bytes"):
        old, new = getattr(outcome.before, name), getattr(trial.after, name)
        assert old - new > 0.9 * stacks, (name, old, new)


def test_the_logits_gradient_no_longer_waits(outcome: Outcome) -> None:
    (trial,) = [t for t in outcome.trials if isinstance(t.candidate.action, BeforeLoop)]
    assert trial.after is not None
    assert outcome.before.peak_bytes is not None
    assert trial.after.peak_bytes is not None
    assert trial.after.peak_bytes < outcome.before.peak_bytes


def test_on_the_host_every_result_is_the_same(outcome: Outcome) -> None:
    told = ask_step(STEP, "verify", topology="cpu:8", options={"plan": to_fields(outcome.plan), "seed": 1})
    assert told["ok"]
    assert all(leaf["bitwise"] for leaf in told["leaves"]), told["leaves"]
