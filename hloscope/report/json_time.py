"""The estimated time of a step as JSON values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hloscope.analysis.step_time import GroupTime, LoopTime, RooflinePoint, StepTime
from hloscope.hlo.compiler_schedule import CompilerSchedule


def time_json(time: StepTime) -> dict[str, Any]:
    """The `time` object: the whole step and what it is made of."""
    unknown = Counter(i.opcode for i in time.unknown)
    return {
        "seconds": time.seconds,
        "is_at_least": None if time.seconds is None else bool(time.unknown),
        "exposed_seconds": time.exposed_seconds,
        "hidden_seconds": time.hidden_seconds,
        "lower_limit_seconds": time.lower_seconds,
        "upper_limit_seconds": time.upper_seconds,
        "calibrated": time.calibrated,
        "model": time.model,
        "by_phase": dict(time.by_phase),
        "by_layer": [{"layer": name, "seconds": seconds} for name, seconds in time.by_layer.items()],
        "by_bound": dict(time.by_bound),
        "unknown": [{"opcode": opcode, "count": n} for opcode, n in unknown.most_common()],
        "loops": [_loop(loop) for loop in time.loops],
        "roofline": [_point(point) for point in time.roofline],
        "scheduler": None if time.scheduler is None else _scheduler(time.scheduler),
    }


def _scheduler(scheduler: CompilerSchedule) -> dict[str, Any]:
    return {
        "clock_hz": scheduler.clock_hz,
        "seconds": scheduler.seconds,
        "waits": [{"for": name, "seconds": seconds} for name, seconds in scheduler.waits.items()],
    }


def _loop(loop: LoopTime) -> dict[str, Any]:
    return {
        "instruction": loop.loop.name,
        "trips": loop.trips,
        "trip_seconds": loop.trip_seconds,
        "step_seconds": loop.step_seconds,
    }


def _point(point: RooflinePoint) -> dict[str, Any]:
    return {
        "family": point.family,
        "seconds": point.seconds,
        "flops": point.flops,
        "bytes": point.bytes,
        "flops_per_byte": point.intensity,
        "compute_share": point.compute_share,
        "bandwidth_share": point.bandwidth_share,
    }


def group_json(time: GroupTime) -> dict[str, Any]:
    """The fields that a census line has of its time."""
    return {
        "seconds": time.seconds,
        "step_seconds": time.step_seconds,
        "flops": time.flops,
        "bound_by": time.bound_by,
        "limit": time.limit,
        "source_of_figure": time.source_of_figure,
    }
