"""Kernels on the terminal: the report of `hloscope kernel`, and the table of a step's kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from hloscope.analysis.kernel_time import KernelTime
from hloscope.analysis.step_kernels import StepKernel
from hloscope.report.tables import Column, table
from hloscope.report.terminal import indented, words
from hloscope.units import UNKNOWN, count, duration, share, size, where

if TYPE_CHECKING:
    from hloscope.report.kernel import KernelReport

# Units busier than this are worth a word.
_SHOWN = 0.05


def render_kernels(report: KernelReport) -> Group:
    """Every kernel: what bounds it, and the figures that say so."""
    parts: list[RenderableType] = [
        words((report.source, "bold"), f" · {report.chip}, compiled for {report.topology}")
    ]
    for kernel in (*report.kernels, *report.fusions):
        parts += [words(), *_kernel(kernel)]
    if report.notes:
        parts.append(words())
        parts += [words((f"note: {note}", "yellow")) for note in report.notes]
    return Group(*parts)


def step_kernels(kernels: Sequence[StepKernel], width: int) -> Iterator[RenderableType]:
    """The Pallas kernels of a step. What is inside of one, the module does not tell."""
    note = "what bounds one, from its machine code: hloscope kernel FILE:FUNCTION"
    yield words(("Pallas kernels", "bold"), (f"  {note}", "dim"))
    if not kernels:
        yield indented(words("none"))
        return
    columns = (
        Column(title="kernel", shrinks=True),
        Column(title="phase", optional=1),
        Column(title="result", shrinks=True),
        Column(title="calls", right=True),
        Column(title="runs", right=True),
        Column(title="HBM bytes", right=True, style="bold"),
        Column(title="time", right=True),
        Column(title="made by", shrinks=True, optional=2, cut_front=True, style="dim"),
    )
    yield table(columns, [_step_row(k) for k in kernels], width)


def _step_row(kernel: StepKernel) -> list[str]:
    limit = {"lower": "≥ ", "upper": "≤ "}.get(kernel.limit or "", "") if kernel.seconds is not None else ""
    return [
        kernel.name,
        kernel.phase,
        kernel.shape,
        count(kernel.count),
        count(kernel.executions),
        size(kernel.bytes),
        f"{limit}{duration(kernel.seconds)}",
        where(kernel.source),
    ]


def _kernel(kernel: KernelTime) -> Iterator[RenderableType]:
    bound = f"bound by {kernel.bound_by}" if kernel.bound_by else "what bounds it is unknown"
    least = "" if kernel.least_seconds is None else f" ({duration(kernel.least_seconds)} at least)"
    yield words(
        (kernel.name, "bold"),
        f"  {duration(kernel.seconds)} a call{least}, ",
        (bound, "bold"),
        f"  ({kernel.source_of_figure})",
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _lines(kernel):
        grid.add_row(words((label, "dim")), words(text))
    yield indented(grid)


def _lines(kernel: KernelTime) -> Iterator[tuple[str, str]]:
    yield "grid", _grid(kernel)
    hidden = (
        "" if kernel.hidden_share is None else f", {share(kernel.hidden_share)} of the shorter may be hidden"
    )
    yield (
        "transfers",
        f"{duration(kernel.transfer_seconds)}: reads {size(kernel.read_bytes)}, writes {size(kernel.written_bytes)}",
    )
    yield "bundles", f"{duration(kernel.compute_seconds)}: {count(kernel.bundles)} in a step{hidden}"
    busy = sorted(kernel.busy.items(), key=lambda pair: -pair[1])
    shown = [f"{unit} {share(used)}" for unit, used in busy if used >= _SHOWN]
    yield "slots in use", ", ".join(shown) or (UNKNOWN if not kernel.busy else "hardly any")
    yield "spills", f"{count(kernel.spills)} stores, {count(kernel.fills)} reloads of vector registers"
    limit = kernel.vmem_limit_bytes
    may = "its limit is unknown" if limit is None else f"of {size(limit)} that it may have"
    yield "VMEM", f"{size(kernel.vmem_bytes)}{',' if limit is None else ''} {may}"


def _grid(kernel: KernelTime) -> str:
    if kernel.grid is None:
        return UNKNOWN
    sizes = " × ".join("data" if n is None else str(n) for n in kernel.grid)
    some = "" if kernel.steps == kernel.all_steps else f"{count(kernel.steps)} of "
    return f"{sizes}: {some}{count(kernel.all_steps)} steps"
