"""What a wrapped command compiled: a report for each module in its dump, equal ones told once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hloscope.capture.command import Ran
from hloscope.errors import UserError
from hloscope.report.dumps import Dumped, dumped_modules
from hloscope.report.json import SCHEMA_VERSION, to_json
from hloscope.report.model import Report
from hloscope.report.target import Opened, open_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A module and its report, or why there is none. `compiles` counts its equals, in all processes."""

    label: str
    path: Path
    bytes: int
    report: Report | None
    error: str | None = None
    compiles: int = 1

    @property
    def is_for_tpu(self) -> bool:
        """Whether it runs on TPUs, and not on the host beside them."""
        return self.report is not None and self.report.target.platform == "tpu"


def read_captured(
    ran: Ran, build: Callable[[Opened], Report], chosen: re.Pattern[str] | None = None
) -> list[Captured]:
    """The modules that a command compiled, those for TPUs first, then the largest first.

    `chosen` is searched in module names. Raises UserError if the folder cannot be read.
    """
    wanted = [d for d in _dumped(ran) if chosen is None or chosen.search(d.module)]
    found = _folded([_read(d, build) for d in wanted])
    return sorted(found, key=lambda c: (not c.is_for_tpu, -c.bytes, c.label))


def module_names(ran: Ran) -> list[str]:
    """The names of all modules that a command compiled, the largest first. Raises UserError as `read_captured`."""
    return list(dict.fromkeys(d.module for d in _dumped(ran)))


def _dumped(ran: Ran) -> list[Dumped]:
    try:
        dumped = dumped_modules(ran.folder) if ran.folder.is_dir() else []
    except OSError as error:
        raise UserError(f"cannot read {error.filename or ran.folder}: {error.strerror or error}") from error
    return [d for d in dumped if any(p.name in ran.fresh for p in d.paths)]


def _read(dumped: Dumped, build: Callable[[Opened], Report]) -> Captured:
    made = Captured(label=dumped.module, path=dumped.path, bytes=dumped.bytes, report=None)
    try:
        return replace(made, report=build(open_module(dumped, str(dumped.path))))
    except UserError as error:  # one damaged module says nothing of the others
        return replace(made, error=str(error))


def _folded(found: Sequence[Captured]) -> list[Captured]:
    """Equal modules as one: processes of one job compile the same, each for itself."""
    alike: dict[tuple[object, ...], list[Captured]] = {}
    for captured in found:
        alike.setdefault(_likeness(captured), []).append(captured)
    return [replace(same[0], compiles=len(same)) for same in alike.values()]


def _likeness(captured: Captured) -> tuple[object, ...]:
    report = captured.report
    if report is None:
        return (captured.path,)
    target, memory = report.target, report.memory
    figures = (memory.total_bytes, memory.peak_bytes, memory.argument_bytes)
    findings = tuple(f.fingerprint for f in report.findings)
    return (target.module, target.platform, target.topology, target.instructions, *figures, findings)


def captured_json(command: Sequence[str], ran: Ran, found: Sequence[Captured]) -> dict[str, Any]:
    """`hloscope capture --json`, as `$defs/capture` of `schema.json` documents it."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": list(command),
        "exit_code": ran.code,
        "folder": str(ran.folder),
        "modules": [
            {
                "module": c.label,
                "hlo_file": str(c.path),
                "compiles": c.compiles,
                "error": c.error,
                "report": None if c.report is None else to_json(c.report),
            }
            for c in found
        ],
    }
