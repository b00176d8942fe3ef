"""Reading a module from a file: HloProto, HloModuleProto or HLO text, gzip or not."""

from __future__ import annotations

import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from hloscope.errors import UserError
from hloscope.hlo import protos
from hloscope.hlo.module import Module
from hloscope.hlo.text_sniff import is_text

# protobuf itself refuses messages of 2 GiB; the largest real modules have some tens of MiB.
_LARGEST = 2**30
# Comments may come before the module in text, e.g. a licence.
_SNIFFED = 2**16

_GZIP = b"\x1f\x8b"
# Wire types of protobuf: numbers, bytes whose length stands before them, and the lengths of those of fixed size.
_NUMBER, _SIZED = 0, 2
_FIXED = {1: 8, 5: 4}

_Message = TypeVar("_Message", protos.HloProto, protos.HloModuleProto)


@dataclass(frozen=True, slots=True, kw_only=True)
class HloFile:
    """What a file holds. `buffer_assignment` is None where it has only the module."""

    path: Path
    module: Module
    buffer_assignment: protos.BufferAssignment | None


def read_hlo(path: str | Path) -> HloFile:
    """Read a `*.hlo.pb`, a serialized HloModuleProto or HLO text, gzip or not.

    Raises UserError with a clear line; for text, with the line and column of what is wrong.
    """
    path = Path(path)
    return parse_hlo(path, read_data(path))


def parse_hlo(path: Path, data: bytes) -> HloFile:
    """What `read_hlo` makes of a file with these bytes, unpacked. Raises UserError as it does."""
    if not data:
        raise UserError(f"{path} is empty")
    module, assignment = _parse(path, data)
    return HloFile(path=path, module=Module(module), buffer_assignment=assignment)


def read_data(path: Path) -> bytes:
    """A file's bytes, unpacked if it is a gzip file. Raises UserError where it cannot be read."""
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode) and not stat.S_ISDIR(kind.st_mode):
            raise UserError(f"{path} is no regular file: save what it gives to one first")
        if kind.st_size > 2 * _LARGEST:
            raise UserError(f"{path} has more than 2 GiB: this is no HLO module")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not data.startswith(_GZIP):
        return data
    return _gunzip(path, data)


def _gunzip(path: Path, data: bytes) -> bytes:
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        # Both messages begin with their field 1. Ask first: what is none may unpack to gigabytes.
        start = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(data, _SNIFFED)
        if not start.startswith(b"\n") and not is_text(start):
            raise UserError(
                f"{path} is no HLO module: what it unpacks to is neither an HloProto, an HloModuleProto nor HLO text"
            )
        out = unpack.decompress(data, _LARGEST)
        if unpack.unused_data.startswith(_GZIP):
            return _unpack_members(path, data)
    except zlib.error as error:
        raise UserError(f"{path} is a damaged gzip file: {error}") from error
    if unpack.unconsumed_tail:
        raise UserError(f"{path} unpacks to more than 1 GiB: this is no HLO module")
    if not unpack.eof:
        raise UserError(f"{path} ends too early: the gzip file is truncated")
    return out


def _unpack_members(path: Path, data: bytes) -> bytes:
    """A gzip file of several members, which are one file: what was packed block by block, or in parts."""
    import gzip
    import io

    try:
        out = gzip.GzipFile(fileobj=io.BytesIO(data)).read(_LARGEST + 1)
    except EOFError as error:
        raise UserError(f"{path} ends too early: the gzip file is truncated") from error
    except gzip.BadGzipFile as error:
        raise UserError(f"{path} is a damaged gzip file: {error}") from error
    if len(out) > _LARGEST:
        raise UserError(f"{path} unpacks to more than 1 GiB: this is no HLO module")
    return out


def _parse(path: Path, data: bytes) -> tuple[protos.HloModuleProto, protos.BufferAssignment | None]:
    """An HloProto has its module in field 1; the same field of an HloModuleProto is its name."""
    if is_text(data):
        from hloscope.hlo.text import parse_text

        return parse_text(data, str(path)), None
    whole = _try(protos.HloProto, data)
    if whole is not None and whole.hlo_module.computations:
        _refuse_several(path, data)
        return whole.hlo_module, whole.buffer_assignment if whole.HasField("buffer_assignment") else None
    module = _try(protos.HloModuleProto, data)
    if module is not None and module.computations:
        _refuse_several(path, data)
        return module, None
    raise UserError(
        f"{path} is no HLO module: it is neither an HloProto, an HloModuleProto nor HLO text, or it was cut short"
    )


def _refuse_several(path: Path, data: bytes) -> None:
    """Raises UserError for protos one after the other: they would be taken for one, with the parts of all of them.

    Both messages have their field 1 once. What is looked at was decoded already.
    """
    at = count = 0
    while at < len(data):
        tag, at = _varint(data, at)
        count += tag >> 3 == 1
        kind = tag & 7
        if kind in _FIXED:
            at += _FIXED[kind]
        elif kind not in (_NUMBER, _SIZED):
            return  # a group, which neither message has
        else:
            number, at = _varint(data, at)
            at += number if kind == _SIZED else 0
    if count > 1:
        raise UserError(
            f"{path} has several modules, one after the other: give every module a file of its own"
        )


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _try(kind: type[_Message], data: bytes) -> _Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
