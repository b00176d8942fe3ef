"""The `hloscope` command.

click reads the command line, a command (`commands.py`) returns what is to run, and `main` runs it, so that errors,
interrupts and closed pipes are ours to answer.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from hloscope.cli.commands import app
from hloscope.errors import CompileError, HloscopeError, UserError

_INTERRUPTED = 130


class _Ended(BaseException):
    """SIGTERM or SIGHUP: what is under way cleans up after itself, then the process dies of it."""


def _end(number: int, _: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise _Ended(number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Every error that is raised on purpose ends here."""
    if arguments is None:
        _open_streams()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)
    try:
        return _run(arguments)
    except _Ended as ended:
        (number,) = ended.args
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + number
    except CompileError as error:
        # Where the compiler left a dump, the report says more than its log.
        return _fail(error, "" if error.dump_dir else error.log_tail)
    except HloscopeError as error:
        return _fail(error)
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # No room, no right, a name too long: the system's own line is the clear one.
        where = f"{error.filename}: " if error.filename else ""
        return _fail(UserError(f"{where}{error.strerror or error}"))


def _open_streams() -> None:
    """Give standard streams that the caller closed a place that takes everything: the exit code still tells.

    Otherwise the next file that is opened would get such a stream's number, and the compiler's log with it.
    """
    while (taken := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(taken, True)
    os.close(taken)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        command: object = app(
            args=None if arguments is None else list(arguments), prog_name=app.name, standalone_mode=False
        )
    except click.UsageError as error:
        return _misused(error)
    # Help and the version have been printed, and leave an exit code.
    code: object = command() if callable(command) else command
    return code if isinstance(code, int) else 0


def _misused(error: click.UsageError) -> int:
    command = "hloscope" if error.ctx is None else error.ctx.command_path
    _say(f"error: {error.format_message().rstrip('.')} (see {command} --help)")
    return 2


def _fail(error: HloscopeError, log_tail: str = "") -> int:
    from hloscope.report.escape import printable

    for text in log_tail.splitlines():
        _say(f"  | {printable(text)}")
    _say(f"error: {printable(str(error))}")
    # Of a text that does not parse: the line, and a mark below the place.
    shown = str(getattr(error, "excerpt", "")).splitlines()
    if shown and shown[0].strip():
        for text in shown:
            _say(f"  {printable(text)}")
    return error.exit_code


def _say(text: str) -> None:
    from hloscope.report.escape import fit_encoding, inert

    print(fit_encoding(inert(text), sys.stderr.encoding or "ascii"), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
