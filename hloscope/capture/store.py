"""Compiled steps by content: a second look at an unchanged step costs no compile.

A key stands for everything that the compiler is given (see `key_of`). An artifact is written in a staging
folder beside its place and renamed into it, so that no reader sees half of one; its files' hashes are in its
manifest, and what does not match is never handed out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hloscope.capture.artifact import (
    FORMAT,
    MANIFEST,
    Artifact,
    from_fields,
    read_artifact,
    read_manifest,
    to_fields,
    write_artifact,
)
from hloscope.errors import UserError

# An artifact is 0.1 MB (a toy) to 30 MB (a 397B mixture of experts): the limit holds hundreds of large ones.
DEFAULT_LIMIT_GIB = 10.0
LIMIT_VARIABLE = "HLOSCOPE_CACHE_GIB"
FOLDER_VARIABLE = "HLOSCOPE_CACHE"
# A staging folder this old belongs to nobody: no compile takes a day.
_STALE_SECONDS = 24 * 3600


def key_of(parts: Mapping[str, object]) -> str:
    """The key of a compile: a hash over all that decides its outcome, and the format of artifacts."""
    text = json.dumps({"format": FORMAT, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def file_hash(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`$HLOSCOPE_CACHE`, else `$XDG_CACHE_HOME/hloscope`, else `~/.cache/hloscope`."""
    if own := environment.get(FOLDER_VARIABLE):
        return Path(own).expanduser().absolute()
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "hloscope"


def default_limit(environment: Mapping[str, str] = os.environ) -> int:
    """How many bytes the store may keep: `$HLOSCOPE_CACHE_GIB` or `DEFAULT_LIMIT_GIB`."""
    text = environment.get(LIMIT_VARIABLE, "")
    try:
        gib = float(text) if text else DEFAULT_LIMIT_GIB
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise UserError(f"{LIMIT_VARIABLE} must be a number of GiB, got {text!r}")
    return int(min(gib, 1 << 30) * (1 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A folder of artifacts, kept below `limit_bytes` by dropping those used longest ago."""

    folder: Path
    limit_bytes: int

    @classmethod
    def default(cls) -> Store:
        """The user's store. `UserError` if its folder cannot be made."""
        return cls(folder=default_folder(), limit_bytes=default_limit())

    def staging(self) -> Path:
        """A new, empty folder on the same file system, for one capture; its maker removes it."""
        return self._new_folder("staging")

    def _new_folder(self, room: str, prefix: str = "") -> Path:
        parent = self.folder / room
        try:
            parent.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        except OSError as error:
            raise UserError(
                f"cannot write to {self.folder} ({error.strerror}); set {FOLDER_VARIABLE} to a folder that "
                "compiled steps can be kept in"
            ) from error

    def capture_folder(self) -> Path:
        """A new, empty folder for the dump of a wrapped command; it is dropped when room is needed."""
        self.evict()
        return self._new_folder("captures", time.strftime("%Y%m%d-%H%M%S-"))

    def place(self, key: str) -> Path:
        """Where the artifact with this key lies, or would."""
        return self.folder / "artifacts" / key

    def lookup(self, key: str) -> Artifact | None:
        """What a compile with this key came to, marked as used: its artifact, else the compiler's final word that it
        fails. None if there is neither, or its files have changed."""
        return _used_now(self.place(key), key) or _used_now(self._failed_place(key), key)

    def _failed_place(self, key: str) -> Path:
        return self.folder / "failed" / key

    def publish(self, artifact: Artifact, *, replace: bool = False) -> Artifact:
        """Move a finished artifact from its staging folder to its place, and return what is there then.

        A sound artifact that another process put there meanwhile stays, since somebody may be reading it,
        unless `replace` is asked for.
        """
        return self._move(artifact, self.place(artifact.key), replace=replace)

    def keep_failed(self, artifact: Artifact, *, replace: bool = False) -> Artifact:
        """Keep what a failed compile left, as `publish` does; it answers for its key only if it is final."""
        return self._move(artifact, self._failed_place(artifact.key), replace=replace)

    def _move(self, artifact: Artifact, place: Path, *, replace: bool) -> Artifact:
        names = sorted(entry.name for entry in artifact.path.iterdir() if entry.is_file())
        files = {
            name: {"bytes": (artifact.path / name).stat().st_size, "sha256": file_hash(artifact.path / name)}
            for name in names
            if name != MANIFEST
        }
        write_artifact(artifact, files)
        place.parent.mkdir(parents=True, exist_ok=True)
        while not _renamed(artifact.path, place):
            if not replace and (theirs := _used_now(place, artifact.key)) is not None:
                return theirs
            _set_aside(place, artifact.path)
        self.evict(keep=place)
        # Not read back: a process that replaces it may be between its two renames.
        return from_fields(place, to_fields(artifact))

    def evict(self, *, keep: Path | None = None) -> None:
        """Drop stale staging folders, and artifacts used longest ago until the rest fits; `keep` stays."""
        for path in _folders(self.folder / "staging"):
            if _used(path) < time.time() - _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        places = [p for room in ("artifacts", "failed", "captures") for p in _folders(self.folder / room)]
        newest_first = sorted(places, key=lambda path: (path == keep, _used(path)), reverse=True)
        total = 0
        for path in newest_first:
            total += _size(path)
            if total > self.limit_bytes and path != keep:
                shutil.rmtree(path, ignore_errors=True)


def _renamed(source: Path, place: Path) -> bool:
    """Rename a folder; False if another lies there already."""
    try:
        source.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _set_aside(place: Path, beside: Path) -> None:
    aside = beside.with_name(f"{beside.name}-old-{time.time_ns():x}")
    # Another process may have moved it first.
    with contextlib.suppress(FileNotFoundError):
        place.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _used_now(place: Path, key: str) -> Artifact | None:
    """What lies at a place, marked as used, if it is sound and an answer for the key."""
    artifact = _checked(place)
    if artifact is None or artifact.key != key or not (artifact.status == "ok" or artifact.is_final):
        return None
    # Another process may drop it this very moment; then its files cannot be touched either.
    try:
        os.utime(place / MANIFEST)
    except FileNotFoundError:
        return None
    return artifact


def _checked(place: Path) -> Artifact | None:
    try:
        manifest = read_manifest(place)
        for name, expected in cast("dict[str, dict[str, Any]]", manifest["files"]).items():
            path = place / name
            if path.stat().st_size != expected["bytes"] or file_hash(path) != expected["sha256"]:
                return None
        artifact = read_artifact(place)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Whatever is wrong with it, it is compiled again.
        return None
    return artifact if artifact.hlo_path.is_file() else None


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (entry for entry in path.iterdir() if entry.is_dir())


def _used(path: Path) -> float:
    """When a folder was last used: its manifest's time of change, else its own; 0 if it is gone."""
    for candidate in (path / MANIFEST, path):
        try:
            return candidate.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _size(path: Path) -> int:
    total = 0
    for entry in path.rglob("*"):
        try:
            total += entry.stat().st_size
        except OSError:
            continue
    return total
