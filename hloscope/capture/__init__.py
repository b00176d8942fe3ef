"""From a step in the user's file to what the compiler made of it, kept on disk.

`capture_step` runs the file in a worker process (`worker`), which lowers the step, compiles it for a topology
and puts the result in a store, so that an unchanged step is not compiled twice. This side imports neither jax
nor numpy, and what only a compile needs when there is one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.capture.artifact import Artifact as Artifact
    from hloscope.capture.artifact import MemoryStats as MemoryStats
    from hloscope.capture.events import Event as Event
    from hloscope.capture.launch import capture_packed as capture_packed
    from hloscope.capture.launch import capture_step as capture_step
    from hloscope.capture.step import Step as Step
    from hloscope.capture.topology import Topology as Topology

_HOMES = {
    "Artifact": "hloscope.capture.artifact",
    "Event": "hloscope.capture.events",
    "MemoryStats": "hloscope.capture.artifact",
    "Step": "hloscope.capture.step",
    "Topology": "hloscope.capture.topology",
    "capture_packed": "hloscope.capture.launch",
    "capture_step": "hloscope.capture.launch",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
