"""Times of operations, and modules, in a profiler's trace (`*.xplane.pb`), as jax.profiler and XProf write them.

A TPU is a plane (`/device:TPU:0`); one of its lines has an event for each run of a module, another one for each
run of an operation, which lies within that of its module. What was compiled lies in a plane of the host's.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path

from google.protobuf.message import DecodeError

from hloscope.errors import UserError
from hloscope.hlo import protos
from hloscope.hlo.reader import read_data

SUFFIX = ".xplane.pb"
_DEVICE = re.compile(r"/device:TPU:\d+")
_MODULES, _OPERATIONS = "XLA Modules", "XLA Ops"
_COMPILED, _HLO = "/host:metadata", "Hlo Proto"
# An operation is named "fusion.3" or with its whole text, "%fusion.3 = ..."; a module "jit_step(123)", by its run.
_OPERATION_NAME = re.compile(r"%?([^\s=]+)")
_PICOSECONDS = 1e-12

Times = dict[str, list[float]]


def read_trace(path: Path) -> dict[str, Times]:
    """By module, by operation: the seconds of each execution, over all TPU devices in the trace.

    Raises UserError for what is no trace, and for a trace without operations on a TPU.
    """
    trace = _decode(path)
    found: dict[str, Times] = {}
    for plane in trace.planes:
        if _DEVICE.fullmatch(plane.name):
            _read_device(plane, found)
    if not found:
        planes = ", ".join(plane.name for plane in trace.planes if plane.name) or "none"
        raise UserError(f"{path} has no operations of a TPU; its planes: {planes}")
    return found


def traced_modules(path: Path) -> dict[str, bytes]:
    """The modules that ran while a trace was made, as encoded HloProtos, by name and program: `jit_step(12)`.

    Raises UserError for what is no trace.
    """
    found: dict[str, bytes] = {}
    for plane in _decode(path).planes:
        if plane.name == _COMPILED:
            stats = {number for number, stat in plane.stat_metadata.items() if stat.name == _HLO}
            for name in plane.event_metadata.values():
                for stat in name.stats:
                    if stat.metadata_id in stats:
                        found[name.name] = stat.bytes_value
    return found


def _decode(path: Path) -> protos.Trace:
    try:
        return protos.Trace.FromString(read_data(path))
    except DecodeError as error:
        raise UserError(f"{path} is no profiler trace: {error}") from error


def _read_device(plane: protos.TracePlane, found: dict[str, Times]) -> None:
    names = {number: name.display_name or name.name for number, name in plane.event_metadata.items()}
    runs = sorted(
        (begin, end, names.get(number, "").partition("(")[0])
        for number, begin, end in _events(plane, _MODULES)
    )
    begins = [begin for begin, _, _ in runs]
    for number, begin, end in _events(plane, _OPERATIONS):
        name = _OPERATION_NAME.match(names.get(number, ""))
        at = bisect_right(begins, begin) - 1
        if name is None or at < 0 or end > runs[at][1]:
            continue  # outside of every run: the trace began or ended within one
        found.setdefault(runs[at][2], {}).setdefault(name[1], []).append((end - begin) * _PICOSECONDS)


def _events(plane: protos.TracePlane, line_name: str) -> list[tuple[int, int, int]]:
    """Name, begin and end of a line's events, in picoseconds."""
    found: list[tuple[int, int, int]] = []
    for line in plane.lines:
        if line.name == line_name:
            start = line.timestamp_ns * 1000
            for event in line.events:
                begin = start + event.offset_ps
                found.append((event.metadata_id, begin, begin + event.duration_ps))
    return found
