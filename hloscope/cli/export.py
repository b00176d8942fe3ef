"""`hloscope export`: a target's module for other tools: XProf, XLA's own, or an editor."""

from __future__ import annotations

import gzip
import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hloscope.cli import examine
from hloscope.cli.output import refuse_one_place
from hloscope.errors import UserError
from hloscope.files import write_whole
from hloscope.hlo import HloFile, protos
from hloscope.hlo.reader import read_data
from hloscope.hlo.text_print import print_text
from hloscope.hlo.text_sniff import is_text

# What a module's name may bring into a file's name.
_ODD = re.compile(r"[^\w.\-]+", re.ASCII)
_PROTO = re.compile(r"(?:\.hlo)?\.pb(?:\.gz)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope export`."""

    target: str
    xprof: str | None = None
    hlo: str | None = None
    proto: str | None = None
    topology: str | None = None
    module: str | None = None


def run(request: Request) -> int:
    """Write what was asked for, say what was written, and return the exit code.

    Of a compile that failed, what the compiler left is written, and its `CompileError` raised then.
    """
    if request.xprof is None and request.hlo is None and request.proto is None:
        raise UserError("say what to write: --xprof DIR, --hlo FILE or --proto FILE")
    for option, place in (("--hlo", request.hlo), ("--proto", request.proto), ("--xprof", request.xprof)):
        if place == "-":
            raise UserError(f"{option} writes a file: give it a name, not -")
    refuse_one_place(request.target, hlo=request.hlo, proto=request.proto)
    wanted = examine.Request(target=request.target, topology=request.topology, module=request.module)
    opened, failure = examine.open_request(wanted)
    file = opened.file
    if request.proto is not None:
        _write(request.proto, [hlo_proto(file)])
        print(f"{request.proto}: {_contents(file)}")
    if request.hlo is not None:
        dumped = dumped_text(file.path)
        pieces = [dumped] if dumped is not None else (piece.encode() for piece in print_text(file.module))
        _write(request.hlo, pieces)
        origin = "as the compiler dumped it" if dumped is not None else "written by hloscope"
        print(f"{request.hlo}: the module as text, {origin}")
    if request.xprof is not None:
        place = write_xprof(file, Path(request.xprof))
        print(f"{place}: {_contents(file)}")
        print(f"open it with: xprof --logdir {shlex.quote(request.xprof)}  (Memory Viewer, Graph Viewer)")
    if failure is not None:
        raise failure
    return 0


def hlo_proto(file: HloFile) -> bytes:
    """The module and its buffer assignment as an HloProto. What came from a proto loses nothing."""
    whole = protos.HloProto(hlo_module=file.module.proto)
    if file.buffer_assignment is not None:
        whole.buffer_assignment.CopyFrom(file.buffer_assignment)
    return whole.SerializeToString()


def dumped_text(path: Path) -> bytes | None:
    """The compiler's own text of a module: the file itself, or what lies beside a dumped proto; else None."""
    stem = _PROTO.sub("", path.name)
    beside = [path.with_name(stem + ending) for ending in (".txt", ".txt.gz")] if stem != path.name else []
    for place in (path, *beside):
        if place.is_file():
            data = read_data(place)
            if is_text(data):
                return data
    return None


def write_xprof(file: HloFile, folder: Path) -> Path:
    """Lay a module out as XProf expects a profile; the module's file. XProf needs a trace beside it, which
    may be empty, and caches by the run's name: so that is made of the module's bytes."""
    data = hlo_proto(file)
    run_folder = folder / "plugins" / "profile" / f"hloscope_{hashlib.sha256(data).hexdigest()[:12]}"
    try:
        run_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {run_folder}: {error.strerror or error}") from error
    name = _ODD.sub("_", file.module.name)[:100] or "module"
    place = run_folder / f"{name}(1).hlo_proto.pb"
    write_whole(place, [data])
    write_whole(run_folder / "h.xplane.pb", [])
    return place


def _write(place: str, pieces: Iterable[bytes]) -> None:
    if not place.endswith(".gz"):
        write_whole(place, pieces)
        return
    # Without a time stamp: one module is always the same file.
    write_whole(place, _zipped(pieces))


def _zipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield gzip.compress(b"".join(pieces), mtime=0)


def _contents(file: HloFile) -> str:
    if file.buffer_assignment is None:
        return "the module as an HloProto, without a buffer assignment, as the target has none"
    return "the module and its buffer assignment as an HloProto"
