"""Picking out of a compiler's dump what an artifact keeps: in the worker, or in its parent if that died."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from hloscope.capture.artifact import BEFORE_FILE, HLO_FILE, SCHEDULE_FILE
from hloscope.hlo import protos

_SUFFIX = "after_optimizations.hlo.pb"
_MODULE = re.compile(r"module_\d+\.(?P<name>.+?)\.(?:cl_\d+\.)?(?:cpu_)?after_optimizations\.hlo\.pb$")
# `# NAME in the current tpu_comp_env has a non-default value. ...`, then `NAME: value` or `NAME { ... }`.
_CHANGED = re.compile(
    r"^# (?P<name>\w+) in the current tpu_comp_env has a non-default value\..*\n"
    r"(?P=name)(?:: (?P<value>.*)| (?P<block>\{(?:.*\n)*?\}))$",
    re.MULTILINE,
)
_FLAG = re.compile(r"--(?P<name>[\w.]+)(?:=(?P<value>.*))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedFiles:
    """What was found: the module's name, its files in the artifact's folder, flags not at their defaults."""

    module_name: str
    hlo_path: Path
    schedule_path: Path | None
    before_hlo_path: Path | None
    changed_flags: dict[str, str]


def collect(dump: Path, folder: Path) -> DumpedFiles | None:
    """Move the files worth keeping from a dump folder into `folder`; None if there is no optimized module."""
    found = sorted(dump.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_size)
    if not found:
        return None
    # A step may make the compiler compile little helpers: the largest module is the step.
    hlo = found[-1]
    named = _MODULE.match(hlo.name)
    module_name = named["name"] if named else hlo.name.removesuffix(f".{_SUFFIX}")
    stem = hlo.name.removesuffix(_SUFFIX).removesuffix("cpu_")
    record = dump / f"{stem}tpu_comp_env.txt"
    files = DumpedFiles(
        module_name=module_name,
        hlo_path=folder / HLO_FILE,
        schedule_path=_compress(dump / f"{module_name}.schedule.txt", folder / SCHEDULE_FILE),
        before_hlo_path=_compress(dump / f"{stem}before_optimizations.hlo.pb", folder / BEFORE_FILE),
        changed_flags=changed_flags(record.read_text() if record.is_file() else ""),
    )
    hlo.replace(files.hlo_path)
    return files


def is_whole(hlo: Path) -> bool:
    """Whether an HloProto of the compiler's can be read. It says nothing when it could write only a part of one."""
    try:
        return bool(protos.HloProto.FromString(hlo.read_bytes()).hlo_module.computations)
    except DecodeError:
        return False


def _compress(source: Path, target: Path) -> Path | None:
    if not source.is_file():
        return None
    with source.open("rb") as plain, gzip.open(target, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    return target


def changed_flags(environment: str) -> dict[str, str]:
    """Flags of the compiler's own record of its environment that it marks as not at their defaults."""
    found = {
        m["name"]: m["block"] if m["value"] is None else m["value"] for m in _CHANGED.finditer(environment)
    }
    return {name: " ".join(value.split()) for name, value in found.items()}


def parse_flags(words: Sequence[str]) -> dict[str, str]:
    """`--name=value` by name; a bare `--name` is true."""
    found = (_FLAG.match(word.strip()) for word in words)
    return {flag["name"]: (flag["value"] or "true").strip("'\"") for flag in found if flag}


def user_flags(changed: Mapping[str, str], options: Mapping[str, object], *variables: str) -> dict[str, str]:
    """The flags that make this compile differ from one without options.

    The compiler marks in its dump the values that differ from their defaults (`changed`; none in a compile
    without options, on any chip that was tried). XLA's general options are not in that record: those the user
    set, as compiler options or in XLA_FLAGS or LIBTPU_INIT_ARGS (`variables`), are added as they were given.
    """
    given = {key: value for text in variables for key, value in parse_flags(text.split()).items()}
    given |= {name: _spelled(value) for name, value in options.items()}
    return dict(sorted({**given, **changed}.items()))


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
