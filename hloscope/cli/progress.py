"""The stages of a compile on standard error: one live line on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.capture import Event

_WORDS = {
    "start": "starting a worker",
    "import": "reading the step file",
    "build": "building the step",
    "rewrite": "applying the plan",
    "trace": "tracing",
    "lower": "lowering",
    "compile": "compiling",
    "store": "keeping the result",
    "done": "compiled",
    "failed": "failed",
}
_STORED = {
    "cached": "compiled before, taken from the store",
    "failed": "failed to compile before, taken from the store",
}


@contextmanager
def progress(*, quiet: bool) -> Generator[Callable[[Event], None] | None, None, None]:
    """What to call as stages begin; None if nobody wants to know."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _live() as on_event:
            yield on_event
    else:
        yield _tell


def stage_in_words(event: Event) -> str:
    """`compiling`, or `compiled before` for what the store had."""
    if event.stage == "done" and event.detail in _STORED:
        return _STORED[event.detail]
    if event.stage == "import" and event.detail:
        return {"script": "running the script", "packed": "unpacking the step"}[event.detail]
    return _WORDS.get(event.stage, event.stage)


def _numbered(event: Event) -> str:
    """The stage, with the number of the compile where several run side by side."""
    return stage_in_words(event) if event.number is None else f"{event.number}: {stage_in_words(event)}"


def _tell(event: Event) -> None:
    if event.stage != "failed":  # the error line says more
        print(f"[{event.seconds:6.1f} s] {_numbered(event)}", file=sys.stderr, flush=True)


@contextmanager
def _live() -> Generator[Callable[[Event], None], None, None]:
    """rich's spinner with the stage and the time so far, which leaves no trace."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda event: bar.update(task, description=_numbered(event), visible=True)
