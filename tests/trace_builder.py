"""Traces as the profiler of a TPU writes them: modules and operations on lines of their own, one run after another."""

from __future__ import annotations

from collections.abc import Sequence

from hloscope.hlo import protos

_MICROSECOND = 10**6  # in picoseconds

Operations = Sequence[tuple[str, float]]


def trace_bytes(
    runs: Sequence[tuple[str, Operations]], *, devices: int = 1, before: Operations = ()
) -> bytes:
    """`runs` are names of modules, each with its operations and their seconds; `before` runs outside of all of them."""
    trace = protos.Trace(planes=[protos.TracePlane(name="/host:CPU")])
    for device in range(devices):
        plane = trace.planes.add(name=f"/device:TPU:{device}")
        modules = plane.lines.add(name="XLA Modules", timestamp_ns=1000)
        operations = plane.lines.add(name="XLA Ops", timestamp_ns=1000)
        now = _add(plane, operations, before, 0)
        for module, parts in runs:
            begin, now = now, _add(plane, operations, parts, now)
            _event(plane, modules, module, begin, now - begin)
            now += _MICROSECOND
    return trace.SerializeToString()


def _add(plane: protos.TracePlane, line: protos.TraceLine, parts: Operations, now: int) -> int:
    for name, seconds in parts:
        _event(plane, line, name, now, round(seconds * 1e12))
        now += round(seconds * 1e12)
    return now


def _event(plane: protos.TracePlane, line: protos.TraceLine, name: str, begin: int, duration: int) -> None:
    known = {named.name: number for number, named in plane.event_metadata.items()}
    number = known.get(name, len(known) + 1)
    plane.event_metadata[number].name = name
    line.events.add(metadata_id=number, offset_ps=begin, duration_ps=duration)
