"""`hloscope capture`: run a command, hand on its exit code, and report on what it compiled."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.output import JsonOutput, write_text
from hloscope.errors import UserError
from hloscope.report.escape import printable
from hloscope.report.verdict import parse_codes
from hloscope.units import some

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hloscope.capture.command import Ran
    from hloscope.report.captured import Captured

_NOTHING = (
    "the command compiled nothing that was dumped: it may run no jax.jit function, set XLA_FLAGS itself, compile on "
    "other machines or before it started, or take its executables from a cache"
)

_MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope capture`, as it was typed."""

    command: Sequence[str]
    folder: str | None = None
    module: str | None = None
    json: str | None = None
    valid_fraction: float | None = None
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    everything: bool = False


def run(request: Request) -> int:
    """Run the command and report. The report goes to standard error: standard output is the command's."""
    from hloscope.capture.command import run_dumping
    from hloscope.report.build import build_report, check_valid_fraction
    from hloscope.report.captured import captured_json, read_captured

    if not request.command:
        raise UserError("a command is missing: hloscope capture -- python train.py")
    if request.json == "-":
        raise UserError("--json - is not possible here: standard output is the command's; give a file")
    check_valid_fraction(request.valid_fraction)
    select, ignore = parse_codes(request.select, "--select"), parse_codes(request.ignore, "--ignore")
    chosen = _pattern(request.module)
    folder = _folder(request.folder)
    build = partial(build_report, valid_fraction=request.valid_fraction, select=select, ignore=ignore)
    with JsonOutput(request.json) as output:
        try:
            ran = run_dumping(request.command, folder)
        except UserError:
            _remove_empty(folder)
            raise
        try:
            found = read_captured(ran, build, chosen)
            if output.wanted:
                output.write_json(captured_json(request.command, ran, found))
            _tell(ran, found, request)
        except UserError as error:
            # What the command has to say goes before what there is to say of it.
            if not ran.code:
                raise
            print(f"hloscope: {error}", file=sys.stderr)
    return ran.code


def _pattern(module: str | None) -> re.Pattern[str] | None:
    try:
        return None if module is None else re.compile(module)
    except re.error as error:
        raise UserError(f"--module {module}: no regular expression ({error})") from error


def _folder(wanted: str | None) -> Path:
    """Where to dump: the user's own choice in XLA_FLAGS, --dir, else a new folder in the store."""
    from hloscope.capture.command import dump_folder
    from hloscope.capture.store import Store

    own = dump_folder(os.environ)
    if own is not None and wanted is not None and own != Path(wanted).absolute():
        raise UserError(f"XLA_FLAGS dumps into {own} already: leave out --dir, or that flag")
    if own is not None:
        return own
    if wanted is None:
        return Store.default().capture_folder()
    folder = Path(wanted).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--dir {wanted} is no folder to dump into: {error.strerror or error}") from error
    return folder


def _tell(ran: Ran, found: Sequence[Captured], request: Request) -> None:
    if not found:
        print(f"hloscope: {_nothing(ran, request.module)}", file=sys.stderr)
        _remove_empty(ran.folder)
        return
    from hloscope.report.terminal import NARROWEST
    from hloscope.report.text_captured import render_captured

    def make(width: int) -> RenderableType:
        return render_captured(found, width=width, everything=request.everything)

    write_text(make, sys.stderr, narrowest=NARROWEST)
    print(f"The dump is in {ran.folder}: hloscope analyze takes it", file=sys.stderr)


def _nothing(ran: Ran, module: str | None) -> str:
    from hloscope.report.captured import module_names

    if module is None or not (names := module_names(ran)):
        return _NOTHING
    return (
        f"the command compiled no module with a name like {module!r}, but "
        f"{printable(some(names, _MOST_NAMED))}; the dump is in {ran.folder}"
    )


def _remove_empty(folder: Path) -> None:
    """A folder that nothing was written into: one less to wonder about."""
    with suppress(OSError):
        folder.rmdir()
