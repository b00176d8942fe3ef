"""Files that commands write: there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hloscope.errors import UserError


def write_whole(place: str | Path, pieces: Iterable[bytes]) -> None:
    """Write a file beside its place and rename it into place. Raises UserError where that cannot be."""
    try:
        # A link stays a link: what it points at is replaced.
        path = Path(os.path.realpath(place))
        if not str(place) or path.is_dir():
            raise IsADirectoryError(0, "it is a folder, not a file" if str(place) else "the name is empty")
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    except (OSError, ValueError) as error:
        raise _refusal(place, error) from error
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        beside.chmod(_mode(path))
        beside.replace(path)
    except OSError as error:
        raise _refusal(place, error) from error
    finally:
        beside.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """mkstemp's file is the owner's alone; what is exported is as readable as any file."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _refusal(place: str | Path, error: OSError | ValueError) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(f"cannot write {place}: {reason or error}")
