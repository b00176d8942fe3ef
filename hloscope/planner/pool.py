"""Several compiles at once: as many as the memory and the cores of this machine have room for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TypeVar

T = TypeVar("T")

# Of the memory that is free: a changed step may take more of it than the step as it is, and so may others.
_SHARE = 0.7
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def at_once(jobs: Sequence[Callable[[Event], T]], workers: int) -> list[T]:
    """What each job returns, in order; `workers` of them are at work at a time.

    Each is given an event that tells it to stop: it is set when one of them raises, or the wait is interrupted.
    What is raised leaves only when all have stopped.
    """
    stop = Event()
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(job, stop) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def room_for(jobs: int, each_bytes: int | None) -> int:
    """How many of `jobs` compiles fit side by side, at least one, where each takes so much memory; one where that
    is not known."""
    free = available_bytes()
    if free is None or not each_bytes:
        return 1
    return max(1, min(jobs, _cores(), int(_SHARE * free) // each_bytes))


def available_bytes() -> int | None:
    """Memory that a new process may take here, by the kernel and by the control group; None if neither tells."""
    known = [n for n in (_free_here(), _left_in_group()) if n is not None]
    return min(known, default=None)


def _free_here() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(kib) * 1024 for _, kib, *_ in fields), None)


def _left_in_group() -> int | None:
    """What version 2 of control groups leaves; None without a limit."""
    try:
        limit, used = ((_GROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
