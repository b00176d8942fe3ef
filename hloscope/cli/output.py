"""Where reports go: the terminal, and files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from hloscope.errors import UserError
from hloscope.files import WholeFile

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.report.model import Report

_PIPE_WIDTH = 100


class ReportOutput:
    """A report's place: a file, or `-` for standard output. Raises UserError on entry if it is no good."""

    kind = "report"

    def __init__(self, place: str | None) -> None:
        self._place = place
        self._file: WholeFile | None = None

    @property
    def wanted(self) -> bool:
        """Whether this report was asked for."""
        return self._place is not None

    @property
    def is_standard(self) -> bool:
        """Whether it goes to standard output, which then holds nothing else."""
        return self._place == "-"

    def __enter__(self) -> Self:
        if self._place is not None and not self.is_standard:
            self._file = WholeFile(self._place, f"the {self.kind}").__enter__()
        return self

    def write_whole(self, text: str) -> None:
        """Write the report's text."""
        if self.is_standard:
            write_bytes(text.encode(), sys.stdout)
            return
        assert self._file is not None
        self._file.write([text.encode()])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.__exit__(kind, error, trace)


class JsonOutput(ReportOutput):
    """The place of a JSON report."""

    kind = "JSON report"

    def write(self, report: Report) -> None:
        """Write the report."""
        self.write_json(report.to_dict())

    def write_json(self, value: Mapping[str, Any]) -> None:
        """Write JSON values. ASCII only: what is odd in a name is spelled out, as JSON does."""
        self.write_whole(json.dumps(value, indent=1, allow_nan=False) + "\n")


class HtmlOutput(ReportOutput):
    """The place of an HTML report. Raises UserError if what it is made with is not installed."""

    kind = "HTML report"

    def __enter__(self) -> Self:
        if self.is_standard:
            raise UserError("--html takes a file; only --json writes to standard output")
        if self.wanted:
            from hloscope.report.html import require_libraries

            require_libraries()
        return super().__enter__()

    def write(self, report: Report) -> None:
        """Write one page that opens offline."""
        self.write_whole(report.to_html())


def check_timeout(seconds: float | None) -> None:
    """Raises UserError for a time that nothing could be done in."""
    if seconds is not None and not seconds > 0:
        raise UserError(f"--timeout takes seconds above 0, not {seconds:g}")


def refuse_one_place(*targets: str, **places: str | None) -> None:
    """Raises UserError where two options name one file, or one names a target or a file of it: it would take its
    place."""
    taken = {os.path.realpath(_file_of(target)): "the target" for target in targets}
    for name, place in places.items():
        path = os.path.realpath(place) if place and place != "-" else ""
        if not path or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        option = f"--{name.replace('_', '-')}"
        if path in taken:
            raise UserError(f"{taken[path]} and {option} name one file, {place}")
        if any(_is_part(path, folder) for folder in taken if os.path.isdir(folder)):
            raise UserError(f"{option} {place} is a file of the target: give another name")
        taken[path] = option


def _is_part(path: str, folder: str) -> bool:
    """Whether a file belongs to the dump or artifact in a folder; what was written beside that before does not."""
    from hloscope.report.dumps import belongs_to_dump

    inside = Path(folder) in Path(path).parents
    return inside and os.path.isfile(path) and belongs_to_dump(os.path.basename(path))


def _file_of(target: str) -> str:
    """The file of `train_step.py:name`, or the target."""
    file, ending, _ = target.rpartition(".py:")
    return f"{file}.py" if ending else target


def write_text(make: Callable[[int], RenderableType], stream: TextIO, *, narrowest: int = 20) -> None:
    """Write a document as wide as the terminal (100 columns elsewhere), coloured where that is wanted.

    `make` is told the width. Nothing is drawn in less than `narrowest` columns.
    """
    from hloscope.report.escape import fit_encoding, inert
    from hloscope.report.terminal import draw, fit_width

    width = fit_width(shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns, narrowest=narrowest)
    text = draw(make(width), width, stream)
    encoding = stream.encoding or "ascii"
    write_bytes(fit_encoding(inert(text), encoding).encode(encoding), stream)


def write_bytes(data: bytes, stream: TextIO) -> None:
    """Write to a standard stream as it is, whatever the stream's own encoding.

    A reader that has gone away is no error. Raises UserError if it cannot be written otherwise.
    """
    try:
        stream.flush()
        stream.buffer.write(data)
        stream.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`): the rest goes nowhere, and the exit code stays what it is. Python
        # would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        raise UserError(f"cannot write to standard output: {error.strerror}") from error
