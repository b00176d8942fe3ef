"""From a step in the user's file to what the compiler made of it, kept on disk.

`capture_step` runs the file in a worker process (`worker`), which lowers the step, compiles it for a topology
and puts the result in a store, so that an unchanged step is not compiled twice. This side imports neither jax
nor numpy.
"""

from __future__ import annotations

from hloscope.capture.artifact import Artifact as Artifact
from hloscope.capture.artifact import MemoryStats as MemoryStats
from hloscope.capture.events import Event as Event
from hloscope.capture.launch import capture_packed as capture_packed
from hloscope.capture.launch import capture_step as capture_step
from hloscope.capture.step import Step as Step
from hloscope.capture.step import step as step
from hloscope.capture.topology import Topology as Topology
