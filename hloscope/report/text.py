"""The terminal report: half a minute to read. Does it fit, what fills it, what is wasted, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table

from hloscope.analysis.census import Family
from hloscope.analysis.step_time import GroupTime
from hloscope.report.budgets import Budget
from hloscope.report.model import Report, Target
from hloscope.report.overrun import Overrun
from hloscope.report.tables import Column, table
from hloscope.report.terminal import cut, indented, joined, words
from hloscope.report.text_collectives import collectives
from hloscope.report.text_findings import accepted, findings
from hloscope.report.text_kernel import step_kernels
from hloscope.report.text_memory import memory
from hloscope.report.text_ragged import ragged_buffers
from hloscope.report.text_time import step_time
from hloscope.rule import Finding
from hloscope.units import UNKNOWN, count, duration, plural, size, where

_SHOWN_FAMILIES = 10
_SHOWN_WARNINGS = 4
_NAMED_CODES = 3
_SHOWN_OVERRUN = 5


def render(report: Report, *, width: int, everything: bool = False, kernels: bool = False) -> Group:
    """The report, to be drawn `width` columns wide, 80 at least; `everything` cuts no table short, `kernels` shows
    the Pallas kernels too."""
    sections = (
        (*header(report.target, width), *_verdict(report.findings)),
        memory(report.memory, report.target, width, everything),
        _overrun(report.overrun),
        budgets(report.budgets),
        step_time(report.time, width, everything),
        _census(report, width, everything),
        collectives(report, width, everything),
        step_kernels(report.kernels, width) if kernels else (),
        ragged_buffers(report.ragged_buffers, width),
        findings(report.findings, everything, report.held),
        accepted(report.held, everything),
        _hints(report),
    )
    blocks = [list(section) for section in sections]
    parts = [part for block in blocks if block for part in (words(), *block)]
    return Group(*parts[1:])


def header(target: Target, width: int) -> Iterator[RenderableType]:
    """What was looked at, and what went wrong."""
    name = cut(target.module, 60)
    about = joined(
        (
            _machine(target),
            f"{count(target.instructions)} instructions",
            "scheduled" if target.scheduled else "not scheduled",
        )
    )
    if cell_len(name) + cell_len(about) + 3 <= width:
        yield words((name, "bold"), " · ", about)
    else:
        yield words((name, "bold"))
        yield indented(words(about))
    if target.status == "failed":
        yield words((f"the compile failed: {_said(target.error)}", "bold red"))
        yield words(("this is what the compiler left behind", "dim"))
    yield from _warnings(target.warnings)


def _verdict(found: Sequence[Finding]) -> Iterator[RenderableType]:
    """What the findings at the end come to, for who reads only the top."""
    if not found:
        return
    prices = "; ".join(t for t in (_wasted(found), _waited(found)) if t)
    text = f"{_named(found)} found {plural(sum(f.places for f in found), 'site')}{': ' if prices else ''}{prices}"
    yield words((f"{text}; details at the end", "yellow"))


def _named(found: Sequence[Finding]) -> str:
    names = list(dict.fromkeys(f.code for f in found))
    return " and ".join(names) if len(names) <= _NAMED_CODES else f"{len(names)} rules"


def _wasted(found: Sequence[Finding]) -> str:
    """What is wasted in bytes, with its time where all that has a price in bytes has one."""
    priced = [f for f in found if f.saved_bytes]
    wasted = sum(f.saved_bytes or 0 for f in priced)
    if not wasted:
        return ""
    # What has no price is not free: the sum of the others is then only a lower bound.
    least = "" if len(priced) == len(found) else "at least "
    known = [f.saved_seconds for f in priced if f.saved_seconds is not None]
    time = f", about {duration(sum(known))}" if sum(known) and len(known) == len(priced) else ""
    return f"{least}{size(wasted)}{time} wasted a step"


def _waited(found: Sequence[Finding]) -> str:
    """What is priced in time alone. It stands by itself, as it may be time of the same work: a reduction that could
    move less is also one that the step waits for."""
    priced = [f for f in found if not f.saved_bytes and f.held_bytes is None and f.saved_seconds]
    seconds = sum(f.saved_seconds or 0.0 for f in priced)
    if not seconds:
        return ""
    if len(priced) == len(found):
        return f"about {duration(seconds)} wasted a step"
    return f"in time alone about {duration(seconds)} ({_named(priced)})"


def _warnings(warnings: Sequence[str]) -> Iterator[RenderableType]:
    if not warnings:
        return
    notes = Table.grid(padding=(0, 1, 0, 0))
    for warning in warnings[:_SHOWN_WARNINGS]:
        notes.add_row("note:", words(cut(warning, 300)), style="yellow")
    if len(warnings) > _SHOWN_WARNINGS:
        notes.add_row("note:", f"{len(warnings) - _SHOWN_WARNINGS} more in the JSON report", style="yellow")
    yield notes


def _said(error: str | None) -> str:
    return cut(error or "the compiler did not say why", 400)


def _machine(target: Target) -> str:
    chip = target.chip or (f"{target.platform}, chip unknown" if target.platform else "chip unknown")
    devices = "devices unknown" if target.devices is None else plural(target.devices, "device")
    axes = {axis: n for axis, n in (target.mesh or {}).items() if n > 1}
    mesh = " × ".join(f"{cut(axis, 30)} {n}" for axis, n in axes.items())
    return f"{cut(chip, 40)}, {devices}" + (f" ({mesh})" if mesh else "")


def budgets(found: Sequence[Budget]) -> Iterator[RenderableType]:
    """Each limit, the figure, and whether it is kept."""
    if not found:
        return
    yield words(("Budgets", "bold"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left"):
        grid.add_column(justify=justify)
    for budget in found:
        over = budget.spelled(budget.actual - budget.limit)
        verdict = (f"exceeded by {over}", "bold red") if budget.exceeded else ("kept", "green")
        note = (f"  {budget.note}", "dim") if budget.note else ""
        grid.add_row(cut(budget.name, 60), budget.held, words(verdict, note))
    yield indented(grid)


def _overrun(over: Overrun | None) -> Iterator[RenderableType]:
    """Where to begin with a step that does not fit."""
    if over is None:
        return
    yield words(
        (f"{size(over.excess_bytes)} too much", "bold red"),
        ("  findings about what is alive at the peak", "dim"),
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column()
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for named in over.named[:_SHOWN_OVERRUN]:
        found = named.finding
        grid.add_row(
            found.code,
            size(named.peak_bytes),
            words(cut(found.title, 90), (f"  {where(found.source)}", "dim")),
        )
    if over.named:
        yield indented(grid)
    else:
        yield indented(words(("none: begin with the largest buffers above", "dim")))


def _census(report: Report, width: int, everything: bool) -> Iterator[RenderableType]:
    census, whole = report.census, report.time.seconds
    families = list(zip(census.families, report.time.families, strict=True))
    yield words(
        ("Fusion census", "bold"), ("  runs in one step, loop trips included; most HBM bytes first", "dim")
    )
    if not families:
        yield indented(words("nothing that runs on its own"))
        return
    shown = families if everything else families[:_SHOWN_FAMILIES]
    columns = (
        Column(title="family", shrinks=True, most=40),
        Column(title="phase"),
        Column(title="shape", shrinks=True),
        Column(title="count", right=True, optional=0 if whole is None else 1),
        Column(title="runs", right=True),
        Column(title="HBM bytes", right=True, style="bold"),
        *([] if whole is None else [Column(title="time", right=True), Column(title="of step", right=True)]),
        Column(title="made by", shrinks=True, optional=2, cut_front=True, style="dim"),
        Column(title="kind", optional=3, style="dim"),
    )
    yield table(columns, [_family_row(f, t, whole) for f, t in shown], width)
    rest = len(families) - len(shown)
    more = f"; {plural(rest, 'more family')} with --all" if rest else ""
    alone = count(census.top_level_fusion_count)
    fusions = f"{plural(census.fusion_count, 'fusion')} in all, {alone} not inside another"
    yield indented(words((f"{fusions}{more}", "dim")))


def _family_row(family: Family, time: GroupTime, whole: float | None) -> list[str]:
    kind = joined((family.kind, family.thread))
    return [
        family.family,
        family.phase,
        family.shape,
        count(family.count),
        count(family.executions),
        size(family.bytes),
        *([] if whole is None else [duration(time.seconds), _of_step(time, whole)]),
        where(family.source),
        kind,
    ]


def _of_step(time: GroupTime, whole: float) -> str:
    """The share of the step; that of asynchronous work is what the step waits for it."""
    return UNKNOWN if time.step_seconds is None else f"{100 * time.step_seconds / whole:.1f} %"


def _hints(report: Report) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 1, 0, 0))
    lead = "Next:"
    for hint in _next(report):
        grid.add_row(lead, words(hint), style="dim")
        lead = ""
    yield grid


def _next(report: Report) -> Iterator[str]:
    if report.findings:
        yield f"hloscope explain {report.findings[0].code} tells what is behind a code"
    if not report.target.may_be_for_tpus:
        yield "hloscope analyze SCRIPT.py --topology NAME, compiles a script's step for TPUs"
    elif report.target.chip is None:
        yield "--topology NAME, e.g. tpu7x:4x4x4, compares with the chip's HBM"
    if any(b.valid.fraction is None and b.buffer.work for b in report.ragged_buffers):
        yield "--valid-fraction 0.5 prices the waste if half of the rows hold tokens"
    yield "--json FILE has all of it"
