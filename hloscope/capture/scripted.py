"""Finding the step in a file that marks none: what it compiles for TPUs, or what it calls, moved to a topology."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hloscope.capture import lowering, topology_names
from hloscope.capture.kept import kept_executable
from hloscope.capture.moving import move, without_mesh
from hloscope.capture.script import Call, Compiling, run
from hloscope.capture.several import choose
from hloscope.capture.step import Step, StepSpec, step_spec
from hloscope.capture.topology import Topology
from hloscope.errors import UserError

if TYPE_CHECKING:
    from hloscope.capture.artifact import Artifact
    from hloscope.capture.worker import Channel, Job, Request

_HOST_DEVICES = ("JAX_NUM_CPU_DEVICES", "xla_force_host_platform_device_count", "jax_num_cpu_devices")
_KINDS = {"lite": "v5e", "v5 lite": "v5e", "v5": "v5p", "v6 lite": "v6e", "7x": "tpu7x"}


def capture_script(request: Request, channel: Channel, job: Callable[..., Job]) -> None:
    """Run the file as a script and tell of the step that was found in it. `UserError` if there is none."""
    channel.enter("import", detail="script")
    path = Path(request.file)
    topology = None if request.topology is None else _target(request.topology)
    if topology is not None and not _chooses_devices(path):
        # As many as the topology has: a script that makes its mesh of all devices then fits.
        importlib.import_module("jax").config.update("jax_num_cpu_devices", topology.num_devices)
    finder = _Finder(request, channel, job, topology)
    try:
        defined = run(path, request.arguments, finder)
    except SystemExit as error:
        if error.code not in (None, 0) and not finder.found:
            raise UserError(
                f"the script ended itself: SystemExit({error.code}){_last_words(request)}"
            ) from error
        defined = {}
    except Exception:
        # What it does after the step was compiled is not looked at; on a machine without TPUs it cannot run it.
        if not finder.found:
            raise
        traceback.print_exc()
        defined = {}
    finder.end(defined)


def _target(name: str) -> Topology:
    topology = Topology(name)
    if topology.platform == "cpu":
        raise UserError(f"{name} is for running, not for compiling: choose a TPU topology, e.g. v5e:2x4")
    topology.check()
    return topology


def _chooses_devices(path: Path) -> bool:
    places = (*os.environ, os.environ.get("XLA_FLAGS", ""), path.read_text(errors="replace"))
    return any(word in place for word in _HOST_DEVICES for place in places)


def _last_words(request: Request) -> str:
    """What argparse says before it ends a script stands in the log's last line."""
    sys.stderr.flush()
    lines = (Path(request.staging) / "log").read_text(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {said}" if said else ""


class _Finder:
    """What `script.run` tells: it takes the first call that looks like a training step, and every TPU compile."""

    def __init__(
        self, request: Request, channel: Channel, job: Callable[..., Job], topology: Topology | None
    ) -> None:
        self.request, self.channel, self.job, self.topology = request, channel, job, topology
        self.calls: list[Call] = []
        self.found: dict[str, Artifact] = {}  # by key: a script may compile the same step several times
        self.compiled: dict[str, Any] = {}  # the executables of those that were not in the store
        self.is_taking = False

    def on_call(self, call: Call) -> None:
        self.calls.append(call)
        if self._is_meant(call):
            self._take(call, f"the first call of {call.name}")

    def on_compile(self, compiling: Compiling) -> Any:
        if self.is_taking:  # our own, not the script's
            return compiling.compile(compiling.options)
        call, shardings = compiling.call, lowering.lowered_shardings(compiling.lowered)
        devices = [d for s in shardings for d in lowering.devices_of(s) if d.platform == "tpu"]
        if not devices:
            if call is not None:
                self.on_call(call)
            return compiling.compile(compiling.options)
        name = lowering.function_name(compiling.lowered) if call is None else call.name
        if self.request.name not in (None, name):
            return compiling.compile(compiling.options)
        return self._keep(compiling, name, shardings, _topology_of(devices))

    def end(self, defined: Mapping[str, Any]) -> None:
        """The script is over: tell what was found."""
        if self.found:
            self._done(choose(self.found.values(), self.request.file))
        named = [c for c in self.calls if self.request.name in (None, c.name)]
        if self.topology is not None and named and self.request.name is None:
            largest = max(named, key=lambda call: call.bytes)
            self._take(largest, f"no call looks like a training step: the largest, of {largest.name},")
        raise UserError(self._nothing(defined))

    def _is_meant(self, call: Call) -> bool:
        if self.topology is None:
            return False
        return call.updates if self.request.name is None else call.name == self.request.name

    def _take(self, call: Call, which: str) -> NoReturn:
        """Compile a call for the topology; the script is stopped where it stands. `which` says why this one."""
        assert self.topology is not None
        self.is_taking = True
        try:
            self.channel.enter("lower", detail=call.name)
            moved = move(call, self.topology)
            others = dict.fromkeys(c.name for c in self.calls if c.name != call.name)
            also = f"; it called {', '.join(others)} before" if others else ""
            self.channel.warnings.append(
                f"{which} was taken as the step and moved to {self.topology.name}{also}; "
                f"{Path(self.request.file).name}:NAME takes another"
            )
            if moved.mesh is None and self.topology.num_devices > 1:
                self.channel.warnings.append(
                    f"nothing in {call.name} is sharded: it is compiled for one of the {self.topology.num_devices} "
                    f"devices of {self.topology.name}, and its figures are those of a step without a mesh"
                )
            lowered = moved.lower()
            step = Step(moved.jitted, args=moved.leaves)
            job = self._job(call.name, step, self.topology, names=moved.parameter_names)
            with without_mesh():
                job.finish(lowered, moved.shardings)
        except BaseException as error:
            # Not through the script's own frames, which may catch it.
            self.channel.failed(type(error), error, error.__traceback__)
            raise
        _leave()

    def _keep(self, compiling: Compiling, name: str, shardings: list[Any], topology: Topology) -> Any:
        """Keep what the script compiles for TPUs, and give the script its executable; of what is in the store, one
        that is compiled when the script asks for more than its memory."""
        try:
            step = Step(compiling.lowered.compile, compiler_options=compiling.options)
            job = self._job(name, step, topology)
            planned = job.plan(compiling.lowered, shardings)
            # jax does not compile the same again in one process, and then dumps nothing.
            artifact = self.found.get(planned.key) or job.stored(planned)
            if artifact is None:
                for left in ("dump", "artifact"):  # by an earlier compile
                    shutil.rmtree(Path(self.request.staging) / left, ignore_errors=True)
                artifact, self.compiled[planned.key] = job.compile(compiling.lowered, planned)
            executable = self.compiled.get(planned.key)
            if executable is None:
                executable = kept_executable(artifact, lambda: compiling.compile(compiling.options))
        except Exception as error:
            self.channel.failed(type(error), error, error.__traceback__)
            raise
        self.found[artifact.key] = artifact
        self.channel.kept(artifact)
        if self.request.name is not None or artifact.status == "failed":
            self._done(artifact)
        self.channel.enter("import", detail="script")
        return executable

    def _job(self, name: str, step: Step, topology: Topology, **more: Any) -> Job:
        spec = StepSpec(name=name, topology=topology.name)
        return self.job(
            request=self.request, channel=self.channel, spec=spec, step=step, topology=topology, **more
        )

    def _done(self, artifact: Artifact) -> NoReturn:
        self.channel.done(artifact, stored=artifact.key not in self.compiled)
        _leave()

    def _nothing(self, defined: Mapping[str, Any]) -> str:
        path, called = self.request.file, ", ".join(dict.fromkeys(c.name for c in self.calls))
        if marked := [spec.name for spec in map(step_spec, defined.values()) if spec is not None]:
            return f"{path} has steps of other files, {', '.join(marked)}: analyze the file that marks them @hs.step"
        if self.request.name is not None and called:
            return f"{path}: no function named {self.request.name!r} was called or compiled for TPUs; called: {called}"
        if called:
            return f"{path} runs {called} on the host: give --topology, e.g. v5e:2x4, to compile its step for TPUs"
        return (
            f"{path}: no function is marked @hs.step, and as a script it called and compiled no jax.jit function "
            "(jax.pmap, jax.shard_map outside of jax.jit and other processes are not seen)"
        )


def _topology_of(devices: Sequence[Any]) -> Topology:
    """The topology that devices lie in, by the room that their coordinates take."""
    kind = devices[0].device_kind.removeprefix("TPU").strip().lower()
    chip = _KINDS.get(kind, topology_names.chip_of(kind))
    room = [max(axis) + 1 for axis in zip(*(d.coords for d in devices), strict=True)]
    if chip in topology_names.TWO_DIMENSIONAL:
        room = room[:2]
    topology = Topology(f"{chip}:{'x'.join(map(str, room))}")
    topology.check()
    return topology


def _leave() -> NoReturn:
    # Threads of the script, and jax taken down, would keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
