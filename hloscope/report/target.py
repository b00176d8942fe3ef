"""What a target is: a step to compile, an artifact, a dump folder or a file that holds HLO, text included."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.capture.beside import Beside, look_beside
from hloscope.errors import CompileError, UserError
from hloscope.hlo import HloFile, read_hlo
from hloscope.hlo.reader import parse_hlo
from hloscope.hlo.trace import SUFFIX as TRACE
from hloscope.hlo.trace import traced_modules
from hloscope.report.dumps import (
    MANIFEST,
    Dumped,
    NoModuleError,
    choose,
    choose_among,
    dumped_modules,
    listed,
    profiles,
)

if TYPE_CHECKING:
    from hloscope.capture import Artifact

_STEP = re.compile(r".+\.py(?::[^:/]*)?", re.DOTALL)
_UNOPTIMIZED = "this is the module before optimization: what runs, and its memory, is not decided in it"
# What the compiler dumps of a module, beside its proto, without the buffer assignment.
_WITHOUT_MEMORY = re.compile(
    r"(?P<stem>.*?)(?:after_optimizations\.(?:txt|hlo)|oom_intermediate_module\.(?:txt|hlo|hlo\.pb))(?:\.gz)?"
)
_PACKED = {b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "ZIP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A target with its module read. `artifact` is None for a dump; `notes` are lines for the user.

    `beside` is what the dump tells beside the module.
    """

    source: str
    file: HloFile
    artifact: Artifact | None = None
    notes: tuple[str, ...] = ()
    beside: Beside = field(default_factory=Beside)


def is_step(target: str) -> bool:
    """Whether a target names a step to compile: `file.py` or `file.py:name`."""
    return _STEP.fullmatch(target) is not None


def open_artifact(artifact: Artifact, source: str) -> Opened:
    """What a capture left."""
    return Opened(source=source, file=read_hlo(artifact.hlo_path), artifact=artifact)


def open_hlo(target: str, *, module: str | None = None) -> Opened:
    """Read a file or folder that holds HLO. Raises UserError if it holds none, or no one knows which."""
    path = Path(target)
    try:
        folder, there = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name too long, or with a zero in it
        raise UserError(f"cannot read {target[:200]!r}: {error}") from error
    if folder:
        return _open_folder(path, target, module)
    if not there:
        raise UserError(f"there is no file or folder {target}")
    _refuse_other(path)
    if path.name.endswith(TRACE):
        return _open_profile(path, target, module)
    file = _checked(read_hlo(path), module)
    return open_dumped(file, target, _knows_more(file))


def left_behind(target: str, error: CompileError) -> Opened:
    """What a failed compile of a step left. Raises the error itself where that is nothing, or of no use."""
    if error.dump_dir is None:
        raise error
    try:
        opened = open_hlo(error.dump_dir)
    except UserError:
        # The failure itself is what the user has to see.
        raise error from None
    return replace(opened, source=target)


def open_dumped(file: HloFile, source: str, notes: tuple[str, ...] = ()) -> Opened:
    """A module that was read from a dump, or an artifact's folder, with what stands beside it."""
    record, doubt = _record(file.path)
    if record is not None:
        if file.path.name == record.hlo_path.name:
            return Opened(source=source, file=file, artifact=record, notes=notes)
        # Its figures are those of the module that came of this one.
        record = replace(record, memory_stats=None, schedule_path=None)
        return Opened(source=source, file=file, artifact=record, notes=(*notes, _UNOPTIMIZED))
    notes += doubt
    try:
        beside = look_beside(file.path)
    except OSError:  # the file was read; that its folder cannot be listed takes nothing away
        beside = Beside()
    if not beside.optimized:
        notes += (_UNOPTIMIZED,)
    return Opened(source=source, file=file, notes=notes, beside=beside)


def _record(path: Path) -> tuple[Artifact | None, tuple[str, ...]]:
    """The record of the artifact that a file is of; None if it is of none, with a note if the record is damaged."""
    if not (path.parent / MANIFEST).is_file():
        return None, ()
    from hloscope.capture import Artifact

    try:
        record = Artifact.load(path.parent)
    except UserError as error:
        return None, (f"how this was compiled is not known: {error}",)
    files = (record.hlo_path, record.before_hlo_path)
    return (record if path.name in {f.name for f in files if f} else None), ()


def _knows_more(file: HloFile) -> tuple[str, ...]:
    """A note where the compiler dumped the same module with its memory, too."""
    named = _WITHOUT_MEMORY.fullmatch(file.path.name)
    if named is None or file.buffer_assignment is not None:
        return ()
    whole = [
        file.path.with_name(f"{named['stem']}after_optimizations.hlo.pb{packed}") for packed in ("", ".gz")
    ]
    return tuple(f"the memory is in the proto beside this: {w.name}" for w in whole if w.is_file())


def _open_folder(folder: Path, target: str, module: str | None) -> Opened:
    if (folder / MANIFEST).is_file():
        from hloscope.capture import Artifact

        opened = open_artifact(Artifact.load(folder), target)
        _checked(opened.file, module)
        return opened
    try:
        try:
            chosen, note = choose(folder, module)
        except NoModuleError:
            if not (traces := profiles(folder)):
                raise
            return _open_profile(traces[0], target, module)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    try:
        return open_module(chosen, target, () if note is None else (note,))
    except UserError as error:
        others = [d for d in dumped_modules(folder) if d != chosen]
        if not others:
            raise
        raise UserError(f"{error}; --module takes another: {listed(others)}") from error


def _open_profile(path: Path, source: str, module: str | None) -> Opened:
    """A module that ran while a profiler's trace was made. Raises UserError if no one knows which, or there is none."""
    held = traced_modules(path)
    if not held:
        raise UserError(f"{path} is a profile that holds no module: give a dump of the step")
    named = [
        Dumped(paths=(path,), label=name, module=name.partition("(")[0], bytes=len(data))
        for name, data in held.items()
    ]
    found = sorted(named, key=lambda d: (-d.bytes, d.label))
    chosen, note = choose_among(found, path, module, same=lambda a, b: held[a.label] == held[b.label])
    return open_dumped(parse_hlo(path, held[chosen.label]), source, () if note is None else (note,))


def open_module(chosen: Dumped, source: str, notes: tuple[str, ...] = ()) -> Opened:
    """A module of a dump folder, from the first of its files that can be read. Raises UserError if none can."""
    file, damage = _read_any(chosen)
    return open_dumped(file, source, notes if damage is None else (*notes, damage))


def _read_any(chosen: Dumped) -> tuple[HloFile, str | None]:
    """The first file of a module that can be read; which could not, and what was read in its place."""
    broken: UserError | None = None
    for path in chosen.paths:
        try:
            file = read_hlo(path)
        except UserError as error:
            broken = broken or error
            continue
        return file, None if broken is None else f"{broken}; read {path.name} in its place"
    assert broken is not None
    raise broken


def _checked(file: HloFile, module: str | None) -> HloFile:
    if module is not None and module != file.module.name:
        raise UserError(f"{file.path} holds the module {file.module.name!r}, not {module!r}")
    return file


def _refuse_other(path: Path) -> None:
    """What is no HLO but often lies beside it: say what it is rather than call it damaged."""
    start = _start(path)
    _refuse_packed(path, start)
    start = start.lstrip()
    if path.suffix == ".ipynb" or start.startswith(b'{\n "cells"'):
        raise UserError(f"{path} is a notebook: put the step into a .py file, with @hloscope.step on it")
    if begins_a_report(start):
        packed = ", uncompressed" if path.suffix == ".gz" else ""
        raise UserError(f"{path} is a report of an earlier run: hs.diff and hloscope diff read it{packed}")
    if start.startswith(b"module @"):
        raise UserError(
            f"{path} is StableHLO, what the step was before it was compiled: give the .hlo.pb or the HLO text "
            "of after_optimizations from a dump"
        )


def _refuse_packed(path: Path, start: bytes) -> None:
    """Dumps are sent around as archives; of what packs files, only gzip is read."""
    if start[257:262] == b"ustar":
        raise UserError(f"{path} is a tar archive: unpack it, and give the folder")
    for mark, name in _PACKED.items():
        if start.startswith(mark):
            raise UserError(f"{path} is packed with {name}: unpack it first (gzip is read as it is)")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is text in UTF-16: save it as UTF-8")


def begins_a_report(start: bytes) -> bool:
    """Whether a file that begins so, blanks left out, is JSON of hloscope's own."""
    return start.startswith(b"{") and b'"schema_version"' in start[:100]


def _start(path: Path) -> bytes:
    """How a file begins, unpacked. Nothing of a pipe or device, which might be waited for: `read_hlo` refuses it."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            data = file.read(4096)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, 4096)
    except zlib.error as error:
        raise UserError(f"{path} is a damaged gzip file: {error}") from error
