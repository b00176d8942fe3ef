"""Running any command with the compiler's dump flags set, as if hloscope were not there.

The command has the terminal: its input, output and error are the caller's own. Signals are passed on, its exit
code is handed back.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hloscope.errors import UserError

_DUMP_TO = "--xla_dump_to"
# Old flags all: an XLA that does not know one of its flags ends the process. The time in front of each file's
# name keeps apart what several processes write into one folder.
_OURS = {
    "--xla_dump_hlo_as_proto": "true",
    "--xla_dump_hlo_as_text": "true",
    "--xla_dump_include_timestamp": "true",
}
_NO_FOLDERS = ("", "-", "sponge")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended: its exit code (128 + N for signal N, as a shell says it), and its dump folder.

    `fresh` are the names of files that it wrote there, a folder's older dumps left out.
    """

    code: int
    folder: Path
    fresh: frozenset[str]


def dump_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder that the user's own XLA_FLAGS dump into. `UserError` if they dump, but into no folder."""
    for word in reversed(_flags(environment)):
        name, _, value = word.partition("=")
        if name == _DUMP_TO:
            if value in _NO_FOLDERS:
                raise UserError(f"XLA_FLAGS has {word!r}, which is no folder: leave it out")
            return Path(value).absolute()
    return None


def dumping(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment with XLA_FLAGS that dump into `folder`; what the user has set there stays as it is."""
    flags = _flags(environment)
    given = {word.partition("=")[0] for word in flags}
    ours = {_DUMP_TO: str(folder), **_OURS}
    added = [f"{name}={value}" for name, value in ours.items() if name not in given]
    # A cached executable is not compiled, and then nothing is dumped.
    cache = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    return {**cache, **environment, "XLA_FLAGS": " ".join(map(_quoted, [*flags, *added]))}


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


def _flags(environment: Mapping[str, str]) -> list[str]:
    """The words of XLA_FLAGS, or of the file that it names, as XLA has it."""
    text = environment.get("XLA_FLAGS", "").strip()
    if text and not text.startswith(("-", '"', "'")):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise UserError(f"XLA_FLAGS names a file of flags, {text}: {error.strerror}") from error
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"XLA_FLAGS cannot be read: {error}") from error


def run_dumping(command: Sequence[str], folder: Path) -> Ran:
    """Run a command with its compiles dumped into `folder`. `UserError` if it cannot be started."""
    environment = dumping(os.environ, folder)
    before = _listing(folder)
    code = _run(command, environment)
    after = _listing(folder)
    fresh = frozenset(name for name, stamp in after.items() if before.get(name) != stamp)
    return Ran(code=code if code >= 0 else 128 - code, folder=folder, fresh=fresh)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    if folder.is_dir():
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                found[entry.name] = (stat.st_mtime_ns, stat.st_size)
    return found


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """At a terminal the command stays in the terminal's group, which gets Ctrl-C and Ctrl-Z as a whole. Elsewhere
    it has a group of its own, so that what is sent to hloscope alone reaches all of it."""
    at_terminal = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]
    with _forwarding() as forward:
        try:
            group = None if at_terminal else 0
            child = subprocess.Popen(list(command), env=dict(environment), process_group=group)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UserError(f"cannot run {command[0]}: {reason}") from error
        forward.to(child, group=not at_terminal)
        return child.wait()


class _Forward:
    """Passes signals on to the command, those too that came before there was one."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._group = False
        self._early: list[int] = []

    def to(self, child: subprocess.Popen[bytes], *, group: bool) -> None:
        self._child, self._group = child, group
        for number in self._early:
            self._send(number)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        elif self._group or number not in (signal.SIGINT, signal.SIGQUIT):
            self._send(number)
        # Else the terminal has sent it to the command already.

    def _send(self, number: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._group:
                os.killpg(self._child.pid, number)
            else:
                self._child.send_signal(number)


@contextlib.contextmanager
def _forwarding() -> Generator[_Forward, None, None]:
    forward = _Forward()
    # A signal that the caller ignores (nohup) is ignored by the command too, and stays so.
    kept = {n: signal.getsignal(n) for n in _FORWARDED}
    handled = [n for n, handler in kept.items() if handler != signal.SIG_IGN]
    for number in handled:
        signal.signal(number, forward)
    try:
        yield forward
    finally:
        for number in handled:
            signal.signal(number, kept[number] or signal.SIG_DFL)
