"""Where a finding stands in the user's repository, for tools that annotate files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hloscope.hlo import SourceFrame
from hloscope.report.target import is_step
from hloscope.rule import Finding

# What pip installed lies in the repository often enough, in an environment; nobody annotates it.
_NOT_OURS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Place:
    """A file, relative to the repository's root, with slashes; `line` is 1-based, None where it is not known."""

    file: str
    line: int | None


def repository(folder: Path) -> Path:
    """The root of the repository that a folder is in, else the folder itself."""
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), folder)


def place_of(finding: Finding, root: Path) -> Place | None:
    """The innermost frame of the program that lies in the repository; None if none does.

    A dump may tell of another machine's files: those that lie under its own path at the same place below some
    folder are taken, `.../model/moe.py` for `model/moe.py`.
    """
    frames = [f for i in finding.instructions[:1] for f in i.frames]
    for frame in (*([finding.source] if finding.source else []), *frames):
        found = _below(frame, root)
        if found is not None:
            return found
    return None


def place_of_target(source: str, root: Path) -> Place | None:
    """The step file that was compiled, if it lies in the repository; None for a dump."""
    if not is_step(source):
        return None
    file = source.rpartition(".py")[0] + ".py"
    return _below(SourceFrame(str(Path(file).absolute()), 1, ""), root)


def _below(frame: SourceFrame, root: Path) -> Place | None:
    path = PurePosixPath(frame.file)
    if not _NOT_OURS.isdisjoint(path.parts):
        return None
    for relative in _candidates(path, root):
        if (root / relative).is_file():
            return Place(str(relative), frame.line or None)
    return None


def _candidates(path: PurePosixPath, root: Path) -> Iterator[PurePosixPath]:
    if not path.is_absolute():
        yield path
    elif path.is_relative_to(root.as_posix()):
        yield path.relative_to(root.as_posix())
    else:
        # Two parts at least: a file's name alone is too common.
        yield from (PurePosixPath(*path.parts[n:]) for n in range(1, len(path.parts) - 1))
