"""`hloscope calibrate`: measured times in, a file with a chip's figures out, which `--chip-figures` takes."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.cli.output import write_text
from hloscope.cli.progress import progress
from hloscope.errors import UserError
from hloscope.files import write_whole

if TYPE_CHECKING:
    from rich.console import Group

    from hloscope.analysis.bundle import Analyses
    from hloscope.analysis.calibrate import Calibration, Figure, Measured

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope calibrate`, as it was typed."""

    target: str
    times: str
    output: str
    topology: str | None = None
    module: str | None = None
    quiet: bool = False


def run(request: Request) -> int:
    """Read times, fit the figures, write them."""
    from hloscope.analysis.calibrate import calibrate
    from hloscope.report.build import analyses_of, open_target
    from hloscope.report.target import is_step

    rows = list(read_times(request.times))
    with progress(quiet=request.quiet or not is_step(request.target)) as on_event:
        opened = open_target(
            request.target, topology=request.topology, module=request.module, on_event=on_event
        )
    analyses = analyses_of(opened, topology=request.topology)
    if analyses.chip is None:
        raise UserError("the chip is not known: give --topology, e.g. v6e:4x4, as it was compiled for")
    found = calibrate(analyses, [_measured(analyses, request.times, name, time) for name, time in rows])
    if not found.figures:
        name, reason = found.unused[0]
        raise UserError(f"none of the {len(rows)} times makes a figure; the first, {name}: {reason}")
    text = figures_text(found, analyses.chip.name, request.times)
    write_whole(request.output, [text.encode()], "the figures")
    write_text(lambda width: _page(found, request.output), sys.stdout)
    return 0


def read_times(path: str) -> Iterator[tuple[str, float]]:
    """Names and seconds of a CSV file with the columns `name` and `seconds`. Raises UserError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read the times in {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    reader = csv.DictReader(text.splitlines())
    if not {"name", "seconds"} <= set(reader.fieldnames or ()):
        raise UserError(f"{path}: the first line must name the columns: name,seconds")
    rows = 0
    for row in reader:
        name, told = (row["name"] or "").strip().removeprefix("%"), (row["seconds"] or "").strip()
        try:
            seconds = float(told)
        except ValueError:
            seconds = math.nan
        if not name or not 0 < seconds < math.inf:
            raise UserError(
                f"{path}, line {reader.line_num}: a name and seconds above 0, not {name!r}, {told!r}"
            )
        rows += 1
        yield name, seconds
    if not rows:
        raise UserError(f"{path} holds no times")


def _measured(analyses: Analyses, path: str, name: str, seconds: float) -> Measured:
    """An instruction, one execution; or a family of the census by its name and phase, all of one step."""
    from hloscope.analysis.calibrate import Measured

    instruction = analyses.module.find(name)
    if instruction is not None:
        return Measured(name=name, seconds=seconds, parts=((instruction, 1),))
    alike = [f for f in analyses.census.families if name in (f.family, f"{f.family} {f.phase}")]
    instructions = [i for family in alike for i in family.instructions]
    if not instructions:
        raise UserError(f"{path}: the module has no instruction and no family {name!r}")
    runs = [analyses.module.executions(i.computation) for i in instructions]
    if None in runs:
        raise UserError(f"{path}: how often {name!r} runs in a step is not known")
    parts = tuple((i, n) for i, n in zip(instructions, runs, strict=True) if n is not None)
    return Measured(name=name, seconds=seconds, parts=parts)


def figures_text(found: Calibration, chip: str, times: str) -> str:
    """The figures file."""
    before, after = _percent(found.error_before), _percent(found.error_after)
    lines = [
        f"# Written by hloscope calibrate from {Path(times).name}: median error {before} before, {after} after.",
        f"[{chip}]",
    ]
    for figure in found.figures:
        lines.append(f"{figure.name} = {figure.value}  # median of {_spread(figure)}")
    return "\n".join(lines) + "\n"


def _spread(figure: Figure) -> str:
    return f"{figure.times} times, {figure.low:.3f} to {figure.high:.3f}"


def _page(found: Calibration, output: str) -> Group:
    from rich.console import Group

    from hloscope.report.terminal import words

    lines = [
        words(
            (figure.name, "bold"),
            f" {figure.value}  median of {figure.times}, {figure.low:.3f} to {figure.high:.3f}",
        )
        for figure in found.figures
    ]
    lines.append(
        words(f"median error {_percent(found.error_before)} before, {_percent(found.error_after)} after")
    )
    lines += [words((f"not used: {name}: {reason}", "dim")) for name, reason in found.unused[:_SHOWN]]
    if len(found.unused) > _SHOWN:
        lines.append(words((f"not used: {len(found.unused) - _SHOWN} more", "dim")))
    lines.append(words(f"{output} is for --chip-figures"))
    return Group(*lines)


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"
