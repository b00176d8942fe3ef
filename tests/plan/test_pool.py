"""Compiles side by side: how many, in which order, and how they are stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from hloscope.errors import CompileError
from hloscope.planner import pool
from hloscope.planner.pool import at_once, available_bytes, room_for

GIB = 1 << 30


def test_results_keep_their_order_and_jobs_are_at_work_together() -> None:
    meeting = threading.Barrier(3, timeout=60)

    def job(number: int, stop: Event) -> int:
        meeting.wait()
        return number

    assert at_once([partial(job, number) for number in range(3)], 3) == [0, 1, 2]


def test_one_worker_does_one_after_the_other() -> None:
    running: list[int] = []

    def job(number: int, stop: Event) -> int:
        assert not running
        running.append(number)
        running.remove(number)
        return number

    assert at_once([partial(job, number) for number in range(3)], 1) == [0, 1, 2]
    assert at_once([], 1) == []


def test_what_one_raises_stops_the_others() -> None:
    waiting, stopped = Event(), Event()

    def fails(stop: Event) -> None:
        assert waiting.wait(60)
        raise CompileError("the disk is full")

    def waits(stop: Event) -> None:
        waiting.set()
        assert stop.wait(60)
        stopped.set()

    def never(stop: Event) -> None:
        pytest.fail("it was not to be started")

    with pytest.raises(CompileError, match="disk"):
        at_once([fails, waits, never], 2)
    assert stopped.is_set()


@pytest.mark.parametrize(
    ("jobs", "each", "expected"),
    [(5, 4 * GIB, 3), (2, 4 * GIB, 2), (5, 100 * GIB, 1), (5, None, 1), (5, GIB, 4), (0, GIB, 1)],
)
def test_as_many_as_memory_and_cores_allow(
    jobs: int, each: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "available_bytes", lambda: 20 * GIB)
    monkeypatch.setattr(pool, "_cores", lambda: 4)
    assert room_for(jobs, each) == expected


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], int | None]:
    def of(meminfo: str, limit: str, used: str) -> int | None:
        for name, text in (("meminfo", meminfo), ("memory.max", limit), ("memory.current", used)):
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(pool, "_MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(pool, "_GROUP", tmp_path)
        return available_bytes()

    return of


def test_a_container_may_have_less_than_the_machine(machine: Callable[[str, str, str], int | None]) -> None:
    meminfo = "MemTotal:  4096 kB\nMemAvailable:   2048 kB\n"
    assert machine(meminfo, "max\n", "4096\n") == 2048 * 1024
    assert machine(meminfo, "10000\n", "4000\n") == 6000
    assert machine("MemTotal:  4096 kB\n", "max\n", "1\n") is None
