"""Which module of a dump folder to look at, and which of its files: chosen by name where there are several."""

from __future__ import annotations

import filecmp
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.errors import UserError
from hloscope.hlo.trace import SUFFIX as TRACE
from hloscope.units import size, some

# `module_0042.jit_step.cl_1234.after_optimizations.hlo.pb`; off TPUs with `cpu_` and the like before `after`;
# with a time in front if several processes dump into one folder (--xla_dump_include_timestamp).
_DUMPED = re.compile(
    r"(?P<stem>(?:\d+\.)?(?P<number>module_\d+)\.(?P<module>.+?)(?:\.cl_\d+)?)"
    r"\.(?:cpu_|(?:sm_[\d.]+_|gfx\w+_)?gpu_)?"
    r"(?P<stage>after_optimizations|oom_intermediate_module|before_optimizations)"
    r"(?:(?P<proto>(?:\.hlo)?\.pb)|\.(?:hlo|txt))(?:\.gz)?"
)
_PROTO = re.compile(r"(?P<stem>.+?)(?:\.hlo)?\.pb(?:\.gz)?")
# Taken out of a dump and named anew; text is worth a look under its own stage's name only.
_OPTIMIZED = re.compile(r"(?P<stem>(?:.*[._])?after_optimizations)(?:(?:\.hlo)?\.pb|\.(?:hlo|txt))(?:\.gz)?")
# XProf's name of a module that it found in a profile.
_PROFILED = re.compile(r"(?P<stem>.+)\.hlo_proto\.pb(?:\.gz)?")
# Between two passes, or not a module at all.
_OTHER = re.compile(
    r"before_optimizations|memory-usage-report|buffer-assignment|oom_intermediate|after_codegen"
    r"|_(?:before|after)_buffer_assignment|\.config\.|debug_options|\b(?:topology|compile_options)\.pb"
    r"|xplane\.pb|_stats\.pb|overview_page\.pb"  # a profile, and what XProf makes of one
)
# From the one that tells most: what ran, as it stood when memory ran out, before the passes.
_STAGES = ("after_optimizations", "oom_intermediate_module", "before_optimizations")
MANIFEST = "artifact.json"  # of a folder of hloscope's own
# A step stands among the small modules that a program compiles on its way: this much larger, it is meant.
_DOMINATES = 4
_MOST_LISTED = 20
# XProf's logs have their modules in LOGDIR/plugins/profile/RUN. Deeper, and in whole disks, nobody keeps a dump.
_DEEPEST = 5
_MOST_ENTRIES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumped:
    """A module in a dump folder.

    `paths` are its files, the one that tells most first: the optimized proto, its text, the module as it stood
    when memory ran out, then that from before the passes. `label` tells it from the others, `bytes` is the first
    file's size before gzip.
    `optimized` is False where there is only the module from before the passes.
    """

    paths: tuple[Path, ...]
    label: str
    module: str
    bytes: int
    optimized: bool = True

    @property
    def path(self) -> Path:
        """The file that tells most."""
        return self.paths[0]


class NoModuleError(UserError):
    """A folder has no module."""


def choose(folder: Path, module: str | None) -> tuple[Dumped, str | None]:
    """The step's module of a dump folder, and what to tell the user about the choice, or None.

    `module` names one of several. Raises NoModuleError if there is none, UserError, with the choices, if none is meant.
    """
    found = dumped_modules(folder)
    if not found:
        raise NoModuleError(_nothing(folder))
    return choose_among(found, folder, module, same=_same)


def choose_among(
    found: Sequence[Dumped], place: Path, module: str | None, *, same: Callable[[Dumped, Dumped], bool]
) -> tuple[Dumped, str | None]:
    """As `choose`, of the modules that a place has, the largest first; `same` tells copies of one."""
    if module is not None:
        return _named(place, found, module), None
    first = found[0]
    # Processes that compile the same step leave a copy each.
    alike = [d for d in found if d is first or same(d, first)]
    others = [d for d in found if d not in alike]
    if others and first.bytes < _DOMINATES * others[0].bytes:
        raise UserError(f"{place} has {len(found)} modules: choose one with --module: {listed(found)}")
    if len(found) == 1:
        return (
            first,
            None
            if first.path.parent == place or first.path == place
            else f"took {first.label}, the only module below",
        )
    large = f"by far the largest of {len(found)} modules" if others else f"one of {len(found)} that are equal"
    return first, f"took {first.label}, {large}; --module takes another"


def belongs_to_dump(name: str) -> bool:
    """Whether a file of a folder, by its name, is a module that may be read from there, or says what lies there."""
    return name == MANIFEST or _DUMPED.fullmatch(name) is not None or _stem(name) is not None


def listed(found: Sequence[Dumped]) -> str:
    """Modules to choose from, with their sizes; not all where there are many."""
    return some([_told(d) for d in found], _MOST_LISTED)


def _same(one: Dumped, other: Dumped) -> bool:
    sized = (one.module, one.bytes) == (other.module, other.bytes)
    return sized and filecmp.cmp(one.path, other.path, shallow=False)


def dumped_modules(folder: Path) -> list[Dumped]:
    """Every module of a folder, largest first; if it has none itself those of its subfolders, or of theirs.

    A module that only its text is there of is taken from that, and one that did not get through the
    compiler's passes as it was before them. Other protos count where nothing is named as XLA names a dump.
    """
    found: list[Dumped] = []
    for files in _levels(folder):
        if found := _modules(files, folder):
            break
    labels = Counter(d.label for d in found)
    told = (d if labels[d.label] == 1 else replace(d, label=str(d.path.relative_to(folder))) for d in found)
    return sorted(told, key=lambda d: (-d.bytes, d.label))


def profiles(folder: Path) -> list[Path]:
    """The traces of a profiler that are nearest in a folder, largest first; of several runs, `UserError`."""
    for files in _levels(folder):
        if found := [f for f in files if f.name.endswith(TRACE) and f.is_file()]:
            runs = sorted({str(f.parent) for f in found})
            if len(runs) > 1:
                raise UserError(
                    f"{folder} has {len(runs)} profiles: name the folder of one: {some(runs, _MOST_LISTED)}"
                )
            return sorted(found, key=lambda f: (-f.stat().st_size, f.name))
    return []


def _levels(folder: Path) -> Iterator[list[Path]]:
    """The files of a folder, then those of all folders in it, then in those, each folder once wherever links lead.

    Raises UserError where a search would take too long, OSError for a folder that cannot be read.
    """
    level, seen, entries = [folder], {_identity(folder)}, 0
    for depth in range(_DEEPEST + 1):
        files: list[Path] = []
        below: list[Path] = []
        for place in level:
            if depth and entries > _MOST_ENTRIES:
                raise UserError(
                    f"no module in the first {entries:,} files below {folder}: name the folder that the dump is in"
                )
            for entry in _entries(place, missing_ok=depth > 0):
                entries += 1
                linked = entry.is_symlink() and os.path.isdir(entry)
                inner = linked or entry.is_dir(follow_symlinks=False)
                (below if inner else files).append(Path(entry.path))
        yield files
        level: list[Path] = []
        for place in sorted(below):
            with suppress(FileNotFoundError):
                if (real := _identity(place)) not in seen:
                    seen.add(real)
                    level.append(place)


def _entries(place: Path, *, missing_ok: bool) -> list[os.DirEntry[str]]:
    """What is in a folder. Others may remove one while it is looked for."""
    try:
        with os.scandir(place) as listed:
            return list(listed)
    except FileNotFoundError:
        if missing_ok:
            return []
        raise


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _modules(files: Iterable[Path], folder: Path) -> list[Dumped]:
    dumped: dict[Path, list[Path]] = defaultdict(list)
    loose: list[Path] = []
    # Most of what lies in a folder is no module: patterns are tried on names that may be one.
    for file in sorted(f for f in files if ".pb" in f.name or any(stage in f.name for stage in _STAGES)):
        if named := _DUMPED.fullmatch(file.name):
            if file.is_file():
                dumped[file.parent / named["stem"]].append(file)
        elif _stem(file.name) is not None and not _OTHER.search(file.name):
            loose += [file] if file.is_file() else []
    found = [_dumped(sorted(paths, key=_worth), folder) for paths in dumped.values()]
    if any(d.optimized for d in found):
        return found
    return [_loose(paths, folder) for paths in _best(loose)] or found


def _worth(path: Path) -> tuple[bool, int, bool]:
    named = _DUMPED.fullmatch(path.name)
    assert named is not None
    return path.stat().st_size == 0, _STAGES.index(named["stage"]), named["proto"] is None


def _best(loose: list[Path]) -> list[tuple[Path, ...]]:
    """Those named as optimized, protos, each with its text behind it, rather than text; where there are none, all
    protos."""
    optimized = [f for f in loose if _OPTIMIZED.fullmatch(f.name) or _PROFILED.fullmatch(f.name)]
    protos = [f for f in optimized if _PROTO.fullmatch(f.name)]
    if not protos:
        return [(f,) for f in [f for f in loose if _PROTO.fullmatch(f.name)] or optimized]
    texts: dict[Path, list[Path]] = defaultdict(list)
    for text in (f for f in optimized if not _PROTO.fullmatch(f.name)):
        texts[text.with_name(_stem(text.name) or "")].append(text)
    return [(f, *texts[f.with_name(_stem(f.name) or "")]) for f in protos]


def _dumped(paths: Sequence[Path], folder: Path) -> Dumped:
    named = _DUMPED.fullmatch(paths[0].name)
    assert named is not None
    return Dumped(
        paths=tuple(paths),
        label=_label(paths[0], folder, f"{named['number']}.{named['module']}"),
        module=named["module"],
        bytes=_unpacked_size(paths[0]),
        optimized=named["stage"] != "before_optimizations",
    )


def _loose(paths: tuple[Path, ...], folder: Path) -> Dumped:
    path = paths[0]
    stem = _stem(path.name) or path.name
    return Dumped(paths=paths, label=_label(path, folder, stem), module=stem, bytes=_unpacked_size(path))


def _stem(name: str) -> str | None:
    """The name of a module that is not named as XLA names a dump, without its ending; None if it is none."""
    found = (kind.fullmatch(name) for kind in (_OPTIMIZED, _PROFILED, _PROTO))
    return next((named["stem"] for named in found if named), None)


def _label(path: Path, folder: Path, name: str) -> str:
    above = path.parent.relative_to(folder)
    return name if above == Path() else f"{above}/{name}"


def _unpacked_size(path: Path) -> int:
    """The size before gzip, which gzip keeps (modulo 4 GiB) in its last four bytes."""
    packed = path.stat().st_size
    if path.suffix != ".gz" or packed < 4:
        return packed
    try:
        with path.open("rb") as file:
            file.seek(-4, 2)
            return int.from_bytes(file.read(4), "little")
    except PermissionError:
        # Told where the module is read, if it is: it may have another file, or not be the one that is meant.
        return packed


def _named(folder: Path, found: Sequence[Dumped], module: str) -> Dumped:
    exact = [d for d in found if module in (d.label, d.module, *(p.name for p in d.paths))]
    matching = exact or [d for d in found if module in d.label]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(f"--module {module} fits {len(matching)} modules of {folder}: {listed(matching)}")
    raise UserError(f"{folder} has no module {module!r}: {listed(found)}")


def _told(dumped: Dumped) -> str:
    stage = "" if dumped.optimized else ", before optimization"
    return f"{dumped.label} ({size(dumped.bytes)}{stage})"


def _nothing(folder: Path) -> str:
    return (
        f"{folder} has no optimized module (*after_optimizations.hlo.pb or .txt): "
        "dump one with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto'"
    )
