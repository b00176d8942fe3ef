"""`--write-baseline`: a file that others may write at the same time, for steps of their own."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hloscope.files import WholeFile
from hloscope.report.baseline import Baseline, StepName, read_baseline, renewed, to_toml

if TYPE_CHECKING:
    from hloscope.rule import Finding


class NewBaseline:
    """The place of a baseline that is to be written; None for none. Raises UserError on entry if it is no good.

    `older` is another file that reasons and other steps are taken from; without it they are those that the place
    itself has when it is written, which may be minutes after the run began.
    """

    def __init__(self, place: str | None, older: Baseline | None) -> None:
        self._place = place
        self._older = older
        self._file: WholeFile | None = None

    def __enter__(self) -> Self:
        if self._place is not None:
            if self._older is None:
                self._read(self._place)
            self._file = WholeFile(self._place, "the baseline").__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.__exit__(kind, error, trace)

    def write(
        self, findings: Sequence[Finding], ran: Iterable[str], step: StepName
    ) -> tuple[Baseline, Baseline]:
        """Accept the findings of a step; what was there before, and what is now."""
        assert self._place is not None
        assert self._file is not None
        with _locked(Path(os.path.realpath(self._place)).parent):
            older = self._older or self._read(self._place)
            newer = replace(renewed(findings, older, ran, step), path=self._place)
            self._file.write([to_toml(newer).encode()])
        return older, newer

    def _read(self, place: str) -> Baseline:
        # Of a place that is no file, /dev/stdout, nothing can be read.
        return (
            read_baseline(place, renewing=True) if Path(place).is_file() else Baseline(path=place, steps={})
        )


@contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Alone among those who write a baseline into a folder, where its file system knows locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
