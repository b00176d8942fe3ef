"""Files: written whole or not at all; TOML, of which nobody knows who edited it."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from hloscope.errors import UserError

_DEEPEST = 100
_DEEP = "it is nested too deeply"


class WholeFile:
    """A place to write a file to. Raises UserError on entry if it is no good, before any work is done for it.

    What is written stands beside the place and is renamed into it, so that a reader never sees half of it, and a run
    that fails leaves an older file as it was. `subject` says in an error what could not be written there.
    """

    def __init__(self, place: str | os.PathLike[str], subject: str = "") -> None:
        self._place = os.fspath(place)
        self._subject = f"{subject} to " if subject else ""
        self._beside: Path | None = None

    @property
    def _path(self) -> Path:
        # A link stays a link: what it points at is replaced.
        return Path(os.path.realpath(self._place))

    def __enter__(self) -> Self:
        try:
            self._beside = self._prepare()
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error
        return self

    def _prepare(self) -> Path | None:
        """An empty file beside the place; None for a place that is no file (/dev/null, a pipe)."""
        if not self._place:
            raise ValueError("the name is empty")
        path = self._path
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder, not a file")
        if path.exists() and not path.is_file():
            return None
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(0, "it is write-protected")
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        return Path(name)

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write all of the file, once."""
        try:
            with (self._beside or self._path).open("wb") as file:
                file.writelines(pieces)
            if self._beside is not None:
                # mkstemp's file is the owner's alone; this one is as readable as any file.
                self._beside.chmod(self._mode())
                self._beside.replace(self._path)
                self._beside = None
        except OSError as error:
            raise self._refusal(error) from error

    def _mode(self) -> int:
        if self._path.exists():
            return self._path.stat().st_mode & 0o777
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

    def _refusal(self, error: OSError | ValueError) -> UserError:
        reason = error.strerror if isinstance(error, OSError) else error
        return UserError(f"cannot write {self._subject}{self._place}: {reason or error}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)


def write_whole(place: str | os.PathLike[str], pieces: Iterable[bytes], subject: str = "") -> None:
    """Write a file in one go. Raises UserError where that cannot be."""
    with WholeFile(place, subject) as file:
        file.write(pieces)


def read_toml(place: str | os.PathLike[str], subject: str) -> dict[str, Any]:
    """The tables of a TOML file. Raises UserError, with `subject` for what it is, if it cannot be read or is none."""
    try:
        # Editors of Windows put a mark before the text.
        content = tomllib.loads(Path(place).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {subject}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError(f"{subject}: {_DEEP}") from error
    except ValueError as error:  # that it is no TOML, no UTF-8, or has a number of thousands of digits
        raise UserError(f"{subject} is no TOML: {error}") from error
    _refuse_outsize(content, subject)
    return content


def _refuse_outsize(content: dict[str, Any], subject: str) -> None:
    """Raises UserError for what no person writes: Python fails on it later, in places of its own choice."""
    level: list[object] = [content]
    for _ in range(_DEEPEST):
        if any(isinstance(value, int) and abs(value) >= 2**63 for value in level):
            raise UserError(f"{subject} is no TOML: it has a whole number of more than 64 bits")
        level = [inner for value in level for inner in _within(value)]
        if not level:
            return
    raise UserError(f"{subject}: {_DEEP}")


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
