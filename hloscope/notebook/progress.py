"""The stages of a compile below a cell: one line that is written over; elsewhere as the command line tells them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hloscope.cli.progress import progress as on_the_command_line
from hloscope.cli.progress import stage_in_words

if TYPE_CHECKING:
    from hloscope.capture import Event

_WIDTH = 60


@contextmanager
def progress(*, quiet: bool) -> Generator[Callable[[Event], None] | None, None, None]:
    """What to call as stages begin; None if nobody wants to know."""
    if quiet or not _in_kernel():
        with on_the_command_line(quiet=quiet) as on_event:
            yield on_event
        return
    try:
        yield _tell
    finally:
        _write("")


def _in_kernel() -> bool:
    """Whether this is a notebook's kernel: its shell has a connection to one, that of a terminal has none."""
    interactive: Any = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None


def _tell(event: Event) -> None:
    if event.stage != "failed":  # the error says more
        _write(f"[{event.seconds:6.1f} s] {stage_in_words(event)}")


def _write(text: str) -> None:
    print(f"\r{text:<{_WIDTH}}", end="\r" if not text else "", file=sys.stderr, flush=True)
