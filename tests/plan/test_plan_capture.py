"""Plans in the worker that compiles, and what a worker tells of a step."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.capture import Event, capture_step
from hloscope.capture.launch import ask_step
from hloscope.errors import CompileError, UserError
from hloscope.plan import MoveAxis, Plan, to_fields

STEP = f"{Path(__file__).parents[1] / 'steps' / 'sharded_gradient.py'}:embed_sharded"
MOVE = MoveAxis(parameter="w", shape=(64, 1024, 4096), axes=("fsdp",), source=1, target=2)

pytestmark = pytest.mark.tpu_compile


def test_a_plan_has_an_artifact_of_its_own_and_is_in_its_manifest() -> None:
    plain = capture_step(STEP)
    planned = capture_step(STEP, plan=Plan(actions=(MOVE,)))
    assert plain.key != planned.key
    assert (plain.plan, planned.plan) == (None, to_fields(Plan(actions=(MOVE,))))
    events: list[Event] = []
    again = capture_step(STEP, plan=Plan(actions=(MOVE,), step="for people only"), on_event=events.append)
    assert again.key == planned.key
    assert (events[-1].stage, events[-1].detail) == ("done", "cached")
    assert "rewrite" in [event.stage for event in events]
    assert capture_step(STEP, plan=Plan()).key == plain.key


def test_a_capture_can_be_stopped() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CompileError, match="stopped during"):
        capture_step(STEP, fresh=True, stop=stop)


def test_the_memory_of_the_worker_is_kept() -> None:
    taken = capture_step(STEP).worker_peak_bytes
    assert taken is not None
    assert 50 << 20 < taken < 1 << 40


def test_a_plan_that_does_not_fit_fails_before_the_compile() -> None:
    with pytest.raises(UserError, match=r"the plan no longer fits: v: .* has no argument v"):
        capture_step(STEP, plan=Plan(actions=(replace(MOVE, parameter="v"),)))


def test_a_step_is_described_without_a_compile() -> None:
    told = ask_step(STEP, "describe")
    assert told["mesh"] == {"fsdp": 128}
    assert told["leaves"][0] == {
        "name": "w",
        "path": ["w"],
        "shape": [64, 1024, 4096],
        "dtype": "float32",
        "axes": [[], ["fsdp"], []],
        "donated": True,
        "twins": ["w"],
    }
