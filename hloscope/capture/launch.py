"""The parent's side of a capture: start a worker, follow it, say in one line how it ended. Without jax."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hloscope
from hloscope.capture import dump, messages
from hloscope.capture.artifact import Artifact, read_artifact
from hloscope.capture.events import STAGES, Event, Stage
from hloscope.capture.kernels import DUMP_FLAGS, without_dump_flags
from hloscope.capture.parcel import PARCEL, Parcel
from hloscope.capture.several import choose
from hloscope.capture.store import Store
from hloscope.errors import CompileError, UserError
from hloscope.plan import Plan, to_fields

Answer = TypeVar("Answer")

# How long a worker that said its last word may take to go, in seconds.
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.2
# Set in workers: a file that captures itself would start one after the other without end.
_IN_WORKER = "HLOSCOPE_IN_WORKER"


def capture_step(
    target: str,
    *,
    topology: str | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    arguments: Sequence[str] = (),
    plan: Plan | None = None,
    kernels: bool = False,
    on_event: Callable[[Event], None] | None = None,
    stop: threading.Event | None = None,
) -> Artifact:
    """Compile the step in `path/to/file.py` or `path/to/file.py:name`, or take it from the store.

    The file runs in a process of its own; one that marks no step is run as a script, with `arguments`.
    `topology` overrides the step's; `timeout` is in seconds for the whole capture; `fresh` compiles even if the
    store has the step; `plan` is applied to the step. `kernels` keeps the machine code of every instruction too,
    which suits a step that is a kernel and little else. `on_event` is called as stages begin; `stop` ends the
    capture when it is set, as a compile that failed.

    Raises `UserError` if the file, the step, the plan or the topology is wrong, `CompileError` if the compiler
    fails, dies or takes too long. Nothing that it started outlives it, whatever is raised, `KeyboardInterrupt` too.
    """
    more = {"fresh": fresh, "arguments": list(arguments), "kernels": kernels}
    request = _request(target, topology, plan) | more
    return _follow(request, _compiled, timeout=timeout, on_event=on_event, stop=stop)


def capture_packed(
    step: Parcel,
    *,
    topology: str,
    timeout: float | None = None,
    fresh: bool = False,
    plan: Plan | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Artifact:
    """Compile a step of this process, or take it from the store. Arguments and errors are those of `capture_step`."""
    _refuse_within_worker()
    fields = {"file": step.file, "name": step.name, "topology": topology, "plan": _planned(plan)}
    request = fields | {"fresh": fresh, "packed": True}
    return _follow(request, _compiled, timeout=timeout, on_event=on_event, parcel=step.data)


def _compiled(path: Path) -> Artifact:
    """The artifact of a compile that worked. `CompileError` if it is of one that failed, earlier."""
    artifact = Artifact.load(path)
    if artifact.status == "failed":
        raise CompileError(
            artifact.error or "the compile failed", log_tail=artifact.log_tail, dump_dir=str(path)
        )
    return artifact


def ask_step(
    target: str,
    task: str,
    *,
    options: Mapping[str, object] | None = None,
    topology: str | None = None,
    timeout: float | None = None,
    plan: Plan | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> dict[str, Any]:
    """The answer to a task of `hloscope.rewrite.tasks` about a step, from a worker that does not compile.

    Arguments and errors are those of `capture_step`.
    """
    request = _request(target, topology, plan) | {
        "fresh": False,
        "task": task,
        "options": dict(options or {}),
    }
    return _follow(request, lambda path: json.loads(path.read_text()), timeout=timeout, on_event=on_event)


def _request(target: str, topology: str | None, plan: Plan | None) -> dict[str, object]:
    _refuse_within_worker()
    file, name = split_target(target)
    return {"file": str(file), "name": name, "topology": topology, "plan": _planned(plan)}


def _refuse_within_worker() -> None:
    if _IN_WORKER in os.environ:
        raise UserError(
            "a step file cannot be analyzed from within itself: put that under `if __name__ == '__main__'`"
        )


def _planned(plan: Plan | None) -> dict[str, Any] | None:
    return None if plan is None or not plan.actions else to_fields(plan)


def _follow(
    request: Mapping[str, object],
    read: Callable[[Path], Answer],
    *,
    timeout: float | None,
    on_event: Callable[[Event], None] | None,
    stop: threading.Event | None = None,
    parcel: bytes | None = None,
) -> Answer:
    """Run a worker on the request and read what it leaves. Its folder, `parcel` in it, is gone afterwards."""
    store = Store.default()
    staging = store.staging()
    places = {
        "staging": str(staging),
        "store_folder": str(store.folder),
        "store_limit": store.limit_bytes,
    }
    try:
        if parcel is not None:
            (staging / PARCEL).write_bytes(parcel)
        listings = staging / "machine_code" if request.get("kernels") else None
        run = _Run(
            file=str(request["file"]),
            staging=staging,
            store=store,
            fresh=bool(request["fresh"]),
            timeout=timeout,
            on_event=on_event,
            stop=stop,
            listings=listings,
        )
        return read(run.follow({**request, **places}))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def split_target(target: str) -> tuple[Path, str | None]:
    """`file.py:name` as an absolute path and a name. `UserError` if there is no such file."""
    text, colon, name = target.rpartition(":")
    path, chosen = (Path(text), name) if colon and not Path(target).exists() else (Path(target), None)
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a Python file")
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if chosen == "":
        raise UserError(f"{target}: a step's name is missing after the colon")
    return path.absolute(), chosen


def worker_environment(
    environment: Mapping[str, str] = os.environ, *, listings: Path | None = None
) -> dict[str, str]:
    """The environment in which a machine without a TPU compiles for one, and says so in the log. `listings` is a
    folder that libtpu shall write the machine code to."""
    flags = environment.get("XLA_FLAGS", "").split()
    init = without_dump_flags(environment.get("LIBTPU_INIT_ARGS", ""))
    if listings is not None:
        init = " ".join([init, *(flag.format(folder=listings) for flag in DUMP_FLAGS)])
    root = str(Path(hloscope.__file__).parent.parent)
    ours = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # libtpu writes its warnings to files in a shared folder unless told otherwise.
        "TPU_STDERR_LOG_LEVEL": "1",
        "TPU_LOG_DIR": "disabled",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        # jax's cache does not serve compiles for a topology, and would be filled with them.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        _IN_WORKER: "1",
        "LIBTPU_INIT_ARGS": init,
        # A dump of the user's own could hide the step's module from ours.
        "XLA_FLAGS": " ".join(flag for flag in flags if not flag.startswith("--xla_dump_")),
        "PYTHONPATH": os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), root))),
    }
    return {**environment, **ours}


@dataclass(slots=True, kw_only=True)
class _Run:
    """One worker's life. `during` is the stage that it is in, `last` its last word."""

    file: str
    staging: Path
    store: Store
    fresh: bool
    timeout: float | None
    on_event: Callable[[Event], None] | None
    stop: threading.Event | None = None
    listings: Path | None = None
    began: float = field(default_factory=lambda: time.monotonic())
    during: Stage = "start"
    last: dict[str, Any] | None = None
    kept: list[Path] = field(default_factory=list[Path])  # where what a script compiled lies
    said_before: int = 0  # bytes of the log that are from before the last compile

    @property
    def log(self) -> str:
        return (self.staging / "log").read_text(errors="replace")

    @property
    def compile_log(self) -> str:
        return (self.staging / "log").read_bytes()[self.said_before :].decode(errors="replace")

    def follow(self, request: Mapping[str, object]) -> Path:
        """Run the worker to its end and tell where its result lies, or raise what went wrong."""
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as events:
            try:
                worker = self._start(writing)
            finally:
                os.close(writing)
            try:
                assert worker.stdin is not None
                # A worker that is gone already is told by its exit code.
                with contextlib.suppress(BrokenPipeError):
                    worker.stdin.write(json.dumps(request).encode() + b"\n")
                    worker.stdin.flush()
                self._read(events.fileno(), worker)
                code = worker.wait(timeout=_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                code = 0
            finally:
                _end(worker)
        return self._outcome(code)

    def _start(self, events: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-P",
            "-u",
            "-X",
            "faulthandler",
            "-m",
            "hloscope.capture.worker",
            str(events),
        ]
        with (self.staging / "log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(events,),
                env=worker_environment(listings=self.listings),
                process_group=0,
            )

    def _read(self, events: int, worker: subprocess.Popen[bytes]) -> None:
        """Pass events on until the worker's last word or its end. `CompileError` when time is up."""
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(events, selectors.EVENT_READ)
            while self.last is None:
                gone = worker.poll() is not None
                if selector.select(0 if gone else self._patience()):
                    chunk = os.read(events, 65536)
                    if not chunk:
                        return
                    *lines, pending = (pending + chunk).split(b"\n")
                    for line in lines:
                        self._heard(json.loads(line))
                elif gone:
                    return

    def _patience(self) -> float:
        if self.stop is not None and self.stop.is_set():
            raise CompileError(f"stopped during {self.during}")
        if self.timeout is None:
            return _POLL_SECONDS
        left = self.began + self.timeout - time.monotonic()
        if left <= 0:
            raise CompileError(
                f"gave up after {self.timeout:g} s, during {self.during}", log_tail=messages.tail(self.log)
            )
        return min(left, _POLL_SECONDS)

    def _heard(self, event: dict[str, Any]) -> None:
        stage = event["stage"]
        if stage == "kept":
            self.kept.append(Path(event["path"]))
        if stage not in STAGES:
            return
        if stage in ("done", "failed"):
            self.last = event
        else:
            self.during = stage
            self.said_before = event.get("said_before", self.said_before)
        if self.on_event is not None:
            detail = str(event.get("detail") or "")
            self.on_event(Event(stage=stage, seconds=time.monotonic() - self.began, detail=detail))

    def _outcome(self, code: int) -> Path:
        if self.last is not None and self.last["stage"] == "done":
            return Path(self.last["path"])
        if self.last is not None and self.last["kind"] == "user":
            error = UserError(self.last["detail"])
            if self.last["own_code"]:
                error.add_note(messages.tail(self.log))
            raise error
        if self.last is None and self.kept and self.during == "import":
            # The script ended its process, or died of running what this machine cannot run.
            return choose([Artifact.load(place) for place in dict.fromkeys(self.kept)], self.file).path
        if self.last is None and code == 0:
            raise UserError(f"the file ended the process during {self.during}, before the step was compiled")
        if self.last is None and (wrong := messages.wrong_flags(self.log)) is not None:
            raise UserError(f"the compiler refuses a flag: {wrong}")
        raise self._compile_error(code)

    def _compile_error(self, code: int) -> CompileError:
        text = self._why(code)
        kept = self._keep(text)
        place = None if kept is None else str(kept.path)
        return CompileError(text, log_tail=messages.tail(self.log), dump_dir=place)

    def _why(self, code: int) -> str:
        if self.last is None:
            return death(code, self.during)
        raised = re.sub(r"\s*See https://\S+ for more details\.", "", self.last["detail"])
        sizes = messages.out_of_memory(self.compile_log, raised)
        if "RESOURCE_EXHAUSTED" in raised and sizes is not None:
            used, limit = map(messages.in_words, sizes)
            return f"the step does not fit: it needs {used} of device memory (HBM), there are {limit}"
        return f"the compiler failed: {raised}"

    def _keep(self, error: str) -> Artifact | None:
        """What the compiler dumped before it failed, as an artifact; None if there is no optimized module."""
        folder, dumped = self.staging / "artifact", self.staging / "dump"
        files = dump.collect(dumped, folder) if folder.is_dir() else None
        if files is None:
            return None
        planned = read_artifact(folder)
        environment = worker_environment()
        variables = (environment["XLA_FLAGS"], environment.get("LIBTPU_INIT_ARGS", ""))
        sizes = messages.out_of_memory(self.compile_log, error)
        said = messages.compiler_warnings(self.compile_log)
        failed = dataclasses.replace(
            planned,
            schedule_path=files.schedule_path,
            before_hlo_path=files.before_hlo_path,
            module_name=files.module_name,
            flags=dump.user_flags(files.changed_flags, planned.compiler_options, *variables),
            hbm_limit_bytes=None if sizes is None else messages.to_bytes(sizes[1]),
            # What the error says in other words is no news.
            warnings=messages.unique(planned.warnings, (w for w in said if not messages.out_of_memory(w))),
            status="failed",
            error=error,
            log_tail=messages.tail(self.log),
            is_final=self.last is not None,
        )
        return self.store.keep_failed(failed, replace=self.fresh)


def death(code: int, during: Stage) -> str:
    """How a worker ended without a word, by its return code."""
    if code >= 0:
        return f"the worker ended with exit code {code} during {during}"
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return f"the worker was killed (SIGKILL) during {during}: probably out of memory on this machine"
    return f"the worker died of {name} during {during}"


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End the worker and all that it started; they share a process group of their own."""
    # The group may be gone, or (macOS) hold only dead processes.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()
    worker.wait()
    # Only now: a worker whose standard input ends removes the folder that its log is in.
    if worker.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
