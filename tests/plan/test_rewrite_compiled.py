"""Valid-row kernels in a layer compiled for a TPU: what they were put in for is gone, and nothing came in its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hloscope.capture import Event, capture_step
from hloscope.capture.launch import ask_step
from hloscope.plan import Plan, ValidRows, to_fields
from hloscope.planner.candidates import ROWS_CODES
from hloscope.planner.measured import Measured
from hloscope.planner.run import Options, Planner, Proposal, carry_out, propose
from hloscope.planner.search import Outcome

STEP = str(Path(__file__).parents[1] / "steps" / "experts.py")
KERNELS = {"glu_rows_silu": 2, "glu_rows_bwd_silu": 1, "unsort_bwd_rows": 1, "valid_rows": 1}

pytestmark = pytest.mark.tpu_compile


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A planner that is done, and what it found."""

    planner: Planner
    proposal: Proposal
    outcome: Outcome

    @property
    def after(self) -> Measured:
        """The layer with its kernels, whatever the verdict on them."""
        (trial,) = self.outcome.trials
        assert trial.after is not None, trial.verdict.reason
        return trial.after


@pytest.fixture(scope="module")
def planned() -> Planned:
    options = Options(valid_fraction=0.5)
    planner = Planner(target=STEP, options=options, begin=lambda number, what: None)
    proposal = propose(planner)
    return Planned(planner=planner, proposal=proposal, outcome=carry_out(planner, proposal))


def test_the_waste_is_found_and_gone(planned: Planned) -> None:
    before, after = planned.outcome.before, planned.after
    assert before.findings["HS101"].count >= 4
    assert before.findings["HS102"].count in (1, 2)  # the compiler of jax 0.10 makes two of it
    assert not ROWS_CODES & set(after.findings)
    assert after.copies.count <= before.copies.count, "no copy of a whole buffer came in its place"


def test_kernels_stand_in_its_place(planned: Planned) -> None:
    (action,) = planned.proposal.candidates
    assert isinstance(action.action, ValidRows)
    assert len(action.action.clusters) == sum(KERNELS.values())
    assert planned.after.kernels.count == sum(KERNELS.values())
    for name, count in KERNELS.items():
        found = [n for n in planned.after.families if n.startswith(f"{name} ")]
        assert sum(planned.after.families[n].count for n in found) == count, sorted(planned.after.families)


def test_less_is_moved_and_the_step_is_faster(planned: Planned) -> None:
    before, after = planned.outcome.before, planned.after
    for old, new in ((before.hbm_bytes, after.hbm_bytes), (before.seconds, after.seconds)):
        assert old is not None
        assert new is not None
        assert new < old
    # Where half of the rows hold tokens, a kernel moves half of the bytes; fusions move all.
    gone = set(before.families) - set(after.families)
    whole = sum(before.families[name].bytes or 0 for name in gone)
    assert after.kernels.bytes is not None
    assert after.kernels.bytes < 0.6 * whole


def test_a_plan_is_kept_only_if_memory_stays(planned: Planned) -> None:
    (trial,) = planned.outcome.trials
    pairs = [
        (getattr(planned.outcome.before, name), getattr(planned.after, name))
        for name in ("temp_bytes", "arena_bytes", "peak_bytes", "total_bytes")
    ]
    assert trial.verdict.kept == all(new <= 1.005 * old for old, new in pairs)


def test_a_plan_is_compiled_once_and_computes_the_same(planned: Planned) -> None:
    (candidate,) = planned.proposal.candidates
    plan, events = Plan(actions=(candidate.action,)), list[Event]()
    again = capture_step(STEP, plan=plan, on_event=events.append)
    assert (events[-1].stage, events[-1].detail) == ("done", "cached")
    assert again.parameter_names == capture_step(STEP).parameter_names
    told = ask_step(STEP, "verify", topology="cpu:8", options={"plan": to_fields(plan), "seed": 1})
    assert told["ok"]
    assert all(leaf["bitwise"] for leaf in told["leaves"]), told["leaves"]
