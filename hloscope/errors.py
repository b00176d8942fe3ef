"""The errors that end a command, each with its exit code; the CLI catches them once."""

from __future__ import annotations


class HloscopeError(Exception):
    """Base of every error that hloscope raises on purpose. The message is one line for a person."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback: the line for a person."""
        tail = getattr(self, "log_tail", "")
        return [*(f"  | {line}" for line in tail.splitlines()), f"{type(self).__name__}: {self}"]


class UserError(HloscopeError):
    """The input is wrong: a missing file, an unknown topology, a step that does not trace. Exit code 2."""

    exit_code = 2


class CompileError(HloscopeError):
    """The compiler failed, aborted or was killed. Exit code 3.

    `log_tail` is the end of the worker's log, for the user to read; `dump_dir`, if not None, is a folder
    with what the compiler dumped before it failed (its HLO and buffer assignment when memory ran out).
    """

    exit_code = 3

    def __init__(self, message: str, *, log_tail: str = "", dump_dir: str | None = None) -> None:
        super().__init__(message)
        self.log_tail = log_tail
        self.dump_dir = dump_dir
