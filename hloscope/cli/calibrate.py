"""`hloscope calibrate`: measured times in, a file with a chip's figures out, which `--chip-figures` takes."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from hloscope.cli.output import refuse_one_place, write_text
from hloscope.cli.progress import progress
from hloscope.errors import UserError
from hloscope.files import write_whole
from hloscope.hlo.trace import SUFFIX, read_trace

if TYPE_CHECKING:
    from rich.console import Group

    from hloscope.analysis.bundle import Analyses
    from hloscope.analysis.calibrate import Calibration, Figure, Measured

    # What was measured, and what is left out of it, each with the reason.
    Times: TypeAlias = tuple[list[Measured], list[tuple[str, str]]]

_SHOWN = 8
_CALLERS = ("while", "conditional", "call")


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

    refuse_one_place(request.target, times=request.times, output=request.output)
    read = _read(request.times)
    with progress(quiet=request.quiet or not is_step(request.target)) as on_event:
        opened = open_target(
            request.target, topology=request.topology, module=request.module, on_event=on_event
        )
    analyses = analyses_of(opened, topology=request.topology)
    if analyses.chip is None:
        raise UserError("the chip is not known: give --topology, e.g. v6e:4x4, as it was compiled for")
    measured, left_out = read(analyses)
    found = calibrate(analyses, measured)
    found = replace(found, unused=(*found.unused, *left_out))
    if not found.figures:
        name, reason = found.unused[0]
        raise UserError(f"none of the {len(found.unused)} times makes a figure; the first, {name}: {reason}")
    text = figures_text(found, analyses.chip.name, request.times)
    write_whole(request.output, [text.encode()], "the figures")
    write_text(lambda width: _page(found, request.output), sys.stdout)
    return 0


def _read(path: str) -> Callable[[Analyses], Times]:
    """Read a file of times, before anything is compiled; what it gives turns into `Measured` beside a module."""
    if path.endswith(SUFFIX):
        trace = read_trace(Path(path))
        return partial(_measured_in_trace, path=path, trace=trace)
    rows = list(read_times(path))
    return lambda analyses: ([_measured(analyses, path, name, time) for name, time in rows], [])


def _measured_in_trace(
    analyses: Analyses, *, path: str, trace: Mapping[str, Mapping[str, list[float]]]
) -> Times:
    """The median time of each operation of the module."""
    from hloscope.analysis.calibrate import Measured
    from hloscope.hlo import is_async_part, is_async_start

    module = analyses.module
    if module.name not in trace:
        raise UserError(f"{path} has no run of {module.name}; it has {', '.join(sorted(trace))}")
    measured: list[Measured] = []
    left_out: list[tuple[str, str]] = []
    for name, seconds in trace[module.name].items():
        instruction, time = module.find(name), median(seconds)
        if instruction is None:
            left_out.append((name, "the module has no such instruction"))
        elif is_async_start(instruction.opcode) or is_async_part(instruction.opcode):
            left_out.append(
                (name, "asynchronous: a trace has the time of its start or its wait, not of its work")
            )
        elif instruction.opcode in _CALLERS:
            left_out.append((name, "its time is that of what it calls"))
        elif time > 0:
            measured.append(Measured(name=name, seconds=time, parts=((instruction, 1),)))
    if not measured:
        raise UserError(f"no operation of {module.name} in {path} is in the module: are both of one compile?")
    return measured, left_out


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
