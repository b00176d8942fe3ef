"""Which file of a dump folder to look at: the optimized module, chosen by name where there are several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope.errors import UserError

# `module_0042.jit_step.cl_1234.after_optimizations.hlo.pb`; off TPUs with `cpu_` and the like before `after`.
_DUMPED = re.compile(
    r"(?P<number>module_\d+)\.(?P<module>.+?)(?:\.cl_\d+)?(?:\.(?:cpu_|(?:sm_[\d.]+_|gfx\w+_)?gpu_)?after_optimizations)?"
)
_PROTO = re.compile(r"(?P<stem>.+?)(?:\.hlo)?\.pb(?:\.gz)?")
_OPTIMIZED = re.compile(r"(?:.*[._])?after_optimizations(?:\.hlo)?\.pb(?:\.gz)?")
# Before the passes that decide memory and fusion, or not a module at all.
_OTHER = re.compile(r"before_optimizations|memory-usage-report|buffer-assignment|\.config\.|debug_options")
# Taken where a folder has no proto: it holds the same module, without the buffer assignment.
_TEXT = re.compile(r"(?P<stem>(?:.*[._])?after_optimizations)\.(?:hlo|txt)(?:\.gz)?")
# A step stands among the small modules that a program compiles on its way: this much larger, it is meant.
_DOMINATES = 4
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumped:
    """A module in a dump folder. `label` tells it from the others, `bytes` is its size before gzip."""

    path: Path
    label: str
    module: str
    bytes: int


def choose(folder: Path, module: str | None) -> tuple[Path, str | None]:
    """The optimized module of a dump folder, and what to tell the user about the choice, or None.

    `module` names one of several. Raises UserError, with the choices, if there is none or no clear one.
    """
    found = dumped_modules(folder)
    if not found:
        raise UserError(_nothing(folder))
    if module is not None:
        return _named(folder, found, module).path, None
    if len(found) == 1:
        return found[0].path, None
    first, second = found[:2]
    if first.bytes < _DOMINATES * second.bytes:
        raise UserError(f"{folder} has {len(found)} modules: choose one with --module: {_listed(found)}")
    return (
        first.path,
        f"took {first.label}, by far the largest of {len(found)} modules; --module takes another",
    )


def dumped_modules(folder: Path) -> list[Dumped]:
    """Every optimized module of a folder, or of its subfolders if it has none itself, largest first.

    Text is taken only where there is no proto.
    """
    protos = _protos(folder.iterdir()) or _protos(_below(folder))
    optimized = [p for p in protos if _OPTIMIZED.fullmatch(p.name)]
    files = optimized or protos or _texts(folder.iterdir()) or _texts(_below(folder))
    found = [_dumped(f, folder) for f in files]
    labels = Counter(d.label for d in found)
    told = (d if labels[d.label] == 1 else replace(d, label=str(d.path.relative_to(folder))) for d in found)
    return sorted(told, key=lambda d: (-d.bytes, d.label))


def _below(folder: Path) -> Iterator[Path]:
    return (f for sub in folder.iterdir() if sub.is_dir() for f in sub.iterdir())


def _protos(files: Iterator[Path]) -> list[Path]:
    return sorted(f for f in files if _PROTO.fullmatch(f.name) and not _OTHER.search(f.name) and f.is_file())


def _texts(files: Iterator[Path]) -> list[Path]:
    return sorted(f for f in files if _TEXT.fullmatch(f.name) and f.is_file())


def _dumped(path: Path, folder: Path) -> Dumped:
    name = _PROTO.fullmatch(path.name) or _TEXT.fullmatch(path.name)
    stem = name["stem"] if name else path.name
    named = _DUMPED.fullmatch(stem)
    label = f"{named['number']}.{named['module']}" if named else stem
    above = path.parent.relative_to(folder)
    return Dumped(
        path=path,
        label=label if above == Path() else f"{above}/{label}",
        module=named["module"] if named else stem,
        bytes=_unpacked_size(path),
    )


def _unpacked_size(path: Path) -> int:
    """The size before gzip, which gzip keeps (modulo 4 GiB) in its last four bytes."""
    size = path.stat().st_size
    if path.suffix != ".gz" or size < 4:
        return size
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int.from_bytes(file.read(4), "little")


def _named(folder: Path, found: Sequence[Dumped], module: str) -> Dumped:
    exact = [d for d in found if module in (d.label, d.module, d.path.name)]
    matching = exact or [d for d in found if module in d.label]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UserError(f"--module {module} fits {len(matching)} modules of {folder}: {_listed(matching)}")
    raise UserError(f"{folder} has no module {module!r}: {_listed(found)}")


def _listed(found: Sequence[Dumped]) -> str:
    labels = ", ".join(d.label for d in found[:_MOST_LISTED])
    more = len(found) - _MOST_LISTED
    return f"{labels} and {more} more" if more > 0 else labels


def _nothing(folder: Path) -> str:
    return (
        f"{folder} has no optimized module (*after_optimizations.hlo.pb or .txt): "
        "dump one with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto'"
    )
