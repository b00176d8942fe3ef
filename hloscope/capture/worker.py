"""The process that runs the user's file and the compiler: `python -m hloscope.capture.worker EVENTS_FD`.

It reads one request, a line of JSON, from standard input, and writes events, JSON lines, to the file
descriptor given. Its standard output and error are the log. When standard input ends its parent is gone, and
so is it.
Whatever is raised ends in one `failed` event: the stage tells whose fault it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import hloscope
from hloscope.capture import compiling, dump, lowering, messages, parcel, script, scripted, store, userfile
from hloscope.capture.artifact import HLO_FILE, KERNELS_FILE, Artifact, write_artifact
from hloscope.capture.events import Stage
from hloscope.capture.kernels import without_dump_flags, write_kernels
from hloscope.capture.step import Step, StepSpec
from hloscope.capture.topology import Topology
from hloscope.errors import CompileError, UserError
from hloscope.plan import Plan, from_fields

# The compiler says nothing when it cannot write a dump; with less than this left, that is why there is none.
_LEAST_ROOM = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the parent asks for. `staging` is a folder for this capture alone; it holds the log already.

    `plan` holds a plan's fields, to be applied to the step. `packed` says that the step lies in the staging folder
    (`parcel`), not in the file, which then only says where its code is from. `task` is "compile", or what
    `rewrite.tasks` calls so, which is given `options` and whose answer is written to `answer.json`.
    """

    file: str
    name: str | None
    topology: str | None
    fresh: bool
    staging: str
    store_folder: str
    store_limit: int
    arguments: list[str] = field(default_factory=list[str])  # of a file that is run as a script
    plan: dict[str, Any] | None = None
    task: str = "compile"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    kernels: bool = False
    packed: bool = False


@dataclass(slots=True)
class Channel:
    """The way back to the parent, and what is being done right now."""

    fd: int
    stage: Stage = "start"
    warnings: list[str] = field(default_factory=list[str])

    def enter(self, stage: Stage, **more: object) -> None:
        """Say that a stage begins."""
        self.stage = stage
        self.send({"stage": stage, **more})

    def done(self, artifact: Artifact, *, stored: bool) -> None:
        """Say the last word of a compile: where its artifact lies, and whether it was there before."""
        detail = "failed" if artifact.status == "failed" else "cached" if stored else "compiled"
        self.enter("done", detail=detail, path=str(artifact.path))

    def kept(self, artifact: Artifact) -> None:
        """Say that a step of a script is kept, whatever the script comes to."""
        self.send({"stage": "kept", "path": str(artifact.path)})

    def send(self, event: dict[str, object]) -> None:
        """Write one event. A parent that is gone is noticed by `watch_parent`, not here."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.fd, (json.dumps(event) + "\n").encode())

    def failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report, leave the whole traceback in the log, and end the process."""
        with contextlib.suppress(OSError):  # the disk that the log is on may be full
            traceback.print_exception(kind, error, trace)
            sys.stderr.flush()
        kind_of_failure, detail = "user", userfile.describe(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            detail = "no room is left on the disk of the store; HLOSCOPE_CACHE names another folder for it"
        elif self.stage == "compile" or isinstance(error, CompileError):
            kind_of_failure, detail = "compile", messages.one_line(str(error))
            if refused := compiling.refused_option(error):
                kind_of_failure, detail = "user", f"the compiler refuses a compiler option: {refused}"
        own_code = userfile.own_place(error) is not None
        self.enter("failed", kind=kind_of_failure, detail=detail, own_code=own_code)
        os._exit(1)


def watch_parent(lifeline: int, staging: Path) -> None:
    """Wait until the parent's end of standard input is closed; then end this process group and clean up."""
    while os.read(lifeline, 4096):
        pass
    # Under another name first: the compiler, still at work, must not write the folder anew.
    aside = staging.with_name(f"{staging.name}-orphan")
    with contextlib.suppress(OSError):
        staging.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The step that was asked for, before and after its plan, and how to build it for another topology."""

    spec: StepSpec
    builder: Any
    topology: Topology
    plan: Plan
    step: Step

    def step_for(self, topology: Topology, plan: Plan) -> Step:
        """The step for a topology, with a plan applied."""
        step = userfile.build(self.spec, self.builder, topology, plan)
        return with_plan(step, plan)


def with_plan(step: Step, plan: Plan) -> Step:
    """The step with a plan applied, logical rules excepted. Nothing is imported for an empty plan."""
    if not plan.actions:
        return step
    return importlib.import_module("hloscope.rewrite.apply").change(step, plan)


def build(request: Request, channel: Channel) -> Built:
    """Run the user's file and call its builder."""
    channel.enter("import", detail="packed" if request.packed else "")
    if request.packed:
        assert request.topology is not None
        topology = topology_for(request, request.topology)
        spec, builder = parcel.unpack(Path(request.staging) / parcel.PARCEL, topology)
    else:
        path = Path(request.file)
        module = userfile.load(path)
        spec, builder = userfile.find(module, path, request.name)
        topology = None
    channel.enter("build", detail=spec.name)
    topology = topology or topology_for(request, named_topology(request, spec))
    plan = Plan() if request.plan is None else from_fields(request.plan)
    step = userfile.build(spec, builder, topology, plan)
    if plan.actions:
        channel.enter("rewrite")
        step = with_plan(step, plan)
    return Built(spec=spec, builder=builder, topology=topology, plan=plan, step=step)


def named_topology(request: Request, spec: StepSpec) -> str:
    """The topology that is asked for, else the step's own."""
    if named := request.topology or spec.topology:
        return named
    raise UserError(
        f"{spec.name} names no topology to compile for: write @hs.step(topology=...) or give --topology"
    )


def topology_for(request: Request, name: str) -> Topology:
    """The topology of that name, checked. Only what runs may lie on the host."""
    return Topology(name) if request.task == "verify" else target_topology(name)


def answer(request: Request, channel: Channel) -> None:
    """Do another task than compiling, and leave its answer, JSON, beside the log."""
    built = build(request, channel)
    channel.enter("rewrite")
    result = importlib.import_module("hloscope.rewrite.tasks").TASKS[request.task](built, request.options)
    path = Path(request.staging) / "answer.json"
    path.write_text(json.dumps(result))
    channel.enter("done", detail=request.task, path=str(path))


def capture(request: Request, channel: Channel) -> Artifact:
    """Lower the user's step, and compile it unless that was done before."""
    built = build(request, channel)
    step, topology = built.step, built.topology
    shardings = lowering.given_shardings(step)
    if not shardings and (request.kernels or is_unplaced_call(request, step)):
        if not request.kernels:
            channel.warnings.append(f"nothing is sharded: compiled for one device of {topology.name}")
        step = lowering.on_one_device(step, topology)
        shardings = lowering.given_shardings(step)
    if not step.is_jitted:
        lowering.check_devices(shardings, topology)
    if topology.num_devices > 1 and (unplaced := lowering.unplaced(step)):
        channel.warnings.append(
            f"no sharding is given for {', '.join(unplaced)}: every device may get all of it"
        )
    mesh = lowering.find_mesh(shardings, topology.platform)
    channel.enter("trace")
    traced = lowering.trace(step, mesh)
    channel.enter("lower")
    lowered = lowering.within(mesh, traced.lower)
    shardings += lowering.lowered_shardings(lowered)
    lowering.check_devices(shardings, topology)
    job = Job(request=request, channel=channel, spec=built.spec, step=step, topology=topology, traced=traced)
    return job.finish(lowered, shardings)


def is_unplaced_call(request: Request, step: Step) -> bool:
    """Whether the step came with plain arrays, as a function is called with in a notebook."""
    return request.packed and not parcel.has_shardings(step.fn)


def target_topology(name: str) -> Topology:
    """The topology to compile for, looked up before the user's own code trips over a wrong name."""
    topology = Topology(name)
    if topology.platform == "cpu":
        raise UserError(f"{name} is for running, not for compiling: choose a TPU topology, e.g. v5e:2x4")
    topology.check()
    return topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A lowered step on its way into the store."""

    request: Request
    channel: Channel
    spec: StepSpec
    step: Step
    topology: Topology
    names: Callable[[list[str]], list[str]] = list  # the parameters' names from those in the lowered module
    traced: Any = None  # for the grids of its kernels

    def finish(self, lowered: Any, shardings: list[Any]) -> Artifact:
        """The artifact of this step: out of the store, or compiled now."""
        planned = self.plan(lowered, shardings)
        stored = self.stored(planned)
        artifact = self.compile(lowered, planned)[0] if stored is None else stored
        self.channel.done(artifact, stored=stored is not None)
        return artifact

    def stored(self, planned: Artifact) -> Artifact | None:
        """What an earlier compile came to, which may have failed; None if there was none, or it is not wanted."""
        return None if self.request.fresh else self.shelf.lookup(planned.key)

    @property
    def shelf(self) -> store.Store:
        """The store."""
        return store.Store(folder=Path(self.request.store_folder), limit_bytes=self.request.store_limit)

    def compile(self, lowered: Any, planned: Artifact) -> tuple[Artifact, Any]:
        """Compile and publish: the artifact, and jax's executable."""
        # A script may compile several steps: what is said of one is no word on the next.
        sys.stderr.flush()
        said_before = self.log.stat().st_size
        self.channel.enter("compile", detail=self.topology.name, said_before=said_before)
        # Written before the compile: it may take this process with it.
        planned.path.mkdir()
        write_artifact(dataclasses.replace(planned, warnings=messages.unique(self.channel.warnings)), {})
        dumped = Path(self.request.staging) / "dump"
        compiled = compiling.compile_step(lowered, self.step.compiler_options, dumped)
        self.channel.enter("store")
        artifact = self.complete(planned, dumped, said_before, compiled)
        return self.shelf.publish(artifact, replace=self.request.fresh), compiled.executable

    def plan(self, lowered: Any, shardings: list[Any]) -> Artifact:
        """All of the artifact that is known before the compile."""
        mesh = lowering.find_mesh(shardings, self.topology.platform)
        options = dict(self.step.compiler_options)
        used = mesh.devices.size if mesh is not None else max(len(s.device_set) for s in shardings)
        folder = Path(self.request.staging) / "artifact"
        return Artifact(
            path=folder,
            hlo_path=folder / HLO_FILE,
            module_name="",
            step_name=self.spec.name,
            source_file=self.request.file,
            topology=self.topology.name,
            platform=self.topology.platform,
            chip=self.topology.chip,
            num_devices=used,
            mesh_axes=None if mesh is None else dict(mesh.shape),
            mesh_device_ids=None if mesh is None else lowering.mesh_device_ids(mesh),
            device_coordinates=self.topology.coordinates,
            wraps=self.topology.wraps,
            versions=versions(),
            flags={},
            compiler_options=options,
            valid_fraction=self.step.valid_fraction,
            parameter_names=self.names(lowering.parameter_names(lowered)),
            warnings=[],
            plan=self.request.plan,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            key=self.key(lowered, shardings, options),
        )

    def key(self, lowered: Any, shardings: list[Any], options: dict[str, Any]) -> str:
        """All that the outcome depends on, and all that the manifest repeats from the step."""
        return store.key_of(
            {
                "stablehlo": lowering.text_of(lowered),
                "devices": lowering.device_assignment(shardings),
                "topology": [self.topology.name, self.topology.wraps],
                "options": {name: [type(value).__name__, value] for name, value in options.items()},
                "environment": list(environment_flags()),
                "versions": versions(),
                "step": [self.spec.name, self.request.file, self.step.valid_fraction],
                "plan": self.request.plan and self.request.plan["action"],
                "kernels": self.request.kernels,
            }
        )

    @property
    def log(self) -> Path:
        """What this process and the compiler write to standard output and error."""
        return Path(self.request.staging) / "log"

    def complete(
        self, planned: Artifact, dumped: Path, said_before: int, compiled: compiling.Compiled
    ) -> Artifact:
        """The artifact with what the compile told, in the log behind what was `said_before`."""
        options = self.step.compiler_options
        # The log is read before asking for the limit, which fills it with an error of its own.
        sys.stderr.flush()
        logged = messages.compiler_warnings(self.log.read_bytes()[said_before:].decode(errors="replace"))
        limit = compiling.hbm_limit(self.topology, options)
        files = dump.collect(dumped, planned.path)
        if files is None or not dump.is_whole(files.hlo_path):
            if shutil.disk_usage(planned.path).free < _LEAST_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if files is None:
                raise CompileError("no optimized module in the dump")
            raise CompileError(
                "the module in its dump is cut short: is there a quota, or a limit on file sizes?"
            )
        listed = planned.path / KERNELS_FILE if self.request.kernels else None
        if listed is not None:
            machine_code = Path(self.request.staging) / "machine_code"
            write_kernels(listed, self.traced, machine_code, compiled.executable.as_text())
        return dataclasses.replace(
            planned,
            kernels_path=listed,
            schedule_path=files.schedule_path,
            before_hlo_path=files.before_hlo_path,
            module_name=files.module_name,
            memory_stats=compiled.memory_stats,
            hbm_limit_bytes=limit,
            flags=dump.user_flags(files.changed_flags, options, *environment_flags()),
            warnings=messages.unique(self.channel.warnings, logged),
            compile_seconds=compiled.seconds,
            worker_peak_bytes=compiling.peak_bytes(),
        )


def environment_flags() -> tuple[str, str]:
    """The two variables that set compiler flags."""
    return os.environ.get("XLA_FLAGS", ""), without_dump_flags(os.environ.get("LIBTPU_INIT_ARGS", ""))


def versions() -> dict[str, str | None]:
    """Versions of what took part; None for a package that is not installed as one."""
    found: dict[str, str | None] = {"python": sys.version.split()[0], "hloscope": hloscope.__version__}
    for name in ("jax", "jaxlib", "libtpu"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def do(request: Request, channel: Channel) -> None:
    """The task that was asked for. A script has no builder, so that it can only be compiled as it is."""
    if request.packed or script.is_step_file(Path(request.file)):
        capture(request, channel) if request.task == "compile" else answer(request, channel)
        return
    if request.plan is not None or request.task != "compile":
        raise UserError(f"{request.file} marks no step: a plan needs a function marked with @hs.step")
    scripted.capture_script(request, channel, Job)


def main() -> None:
    """Answer the one request on standard input."""
    channel = Channel(fd=int(sys.argv[1]))
    # The user's own subprocesses shall not keep these open.
    os.set_inheritable(channel.fd, False)
    sys.excepthook = channel.failed
    channel.enter("start")
    lifeline = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    request = Request(**json.loads(read_line(lifeline)))
    threading.Thread(target=watch_parent, args=(lifeline, Path(request.staging)), daemon=True).start()
    try:
        with compiling.collected_warnings(channel.warnings):
            do(request, channel)
    except BaseException as error:
        # Not left to sys.excepthook, which the user's file may replace, nor SystemExit to Python, which would
        # wait for the threads of that file.
        if isinstance(error, SystemExit):
            error = UserError(f"the code ended itself: SystemExit({error.code})").with_traceback(
                error.__traceback__
            )
        channel.failed(type(error), error, error.__traceback__)
        raise
    # Nothing is left to do, and taking jax down takes longer than a cached answer.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def read_line(fd: int) -> bytes:
    """One line from a file descriptor, unbuffered: what follows belongs to `watch_parent`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 65536)
        if not chunk:
            break
        line += chunk
    return bytes(line)


if __name__ == "__main__":
    main()
