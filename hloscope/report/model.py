"""The report: the one model that every output is drawn from. No renderer computes anything of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hloscope.analysis.ragged import ValidRows
from hloscope.analysis.rows import RaggedBuffer
from hloscope.analysis.step_kernels import StepKernel
from hloscope.analysis.step_time import StepTime
from hloscope.hlo import Module
from hloscope.report.baseline import Baseline, Entry, Held, StepName, hold
from hloscope.report.budgets import Budget, Limit, measure
from hloscope.report.overrun import Overrun
from hloscope.report.views import CensusView, CollectivesView, Findings, MemoryView
from hloscope.units import plural, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What was looked at. None is unknown: a dump tells neither its chip nor who compiled it.

    `source` is the target as the user named it, `hlo_file` the file that the module was read from. `devices`
    counts what the program is partitioned over, `mesh` has the axis sizes in mesh order. `flags` and
    `compiler_options` are those that the user set. `status` is `failed` if the compiler failed and this is
    what it left, with its line in `error`. `valid_fraction` is the share of ragged rows that hold tokens.
    """

    source: str
    hlo_file: str
    module: str
    platform: str | None
    chip: str | None
    devices: int | None
    topology: str | None
    mesh: Mapping[str, int] | None
    instructions: int
    scheduled: bool
    status: str
    error: str | None
    compile_seconds: float | None
    versions: Mapping[str, str | None]
    flags: Mapping[str, str]
    compiler_options: Mapping[str, Any]
    warnings: tuple[str, ...]
    valid_fraction: float | None
    valid_fraction_source: str | None

    @property
    def may_be_for_tpus(self) -> bool:
        """Whether a topology could say more of it: not if it is known to be for the host or for GPUs."""
        return self.platform in ("tpu", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """A ragged buffer and how many of its rows hold tokens, from whoever knows best."""

    buffer: RaggedBuffer
    valid: ValidRows


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """All that is told about one compiled step. `module` is what it was told of; the JSON report is without it."""

    target: Target
    module: Module
    memory: MemoryView
    census: CensusView
    collectives: CollectivesView
    time: StepTime
    kernels: tuple[StepKernel, ...]
    ragged_buffers: tuple[Ragged, ...]
    findings: Findings
    judged: tuple[str, ...]  # the codes of the rules that ran and had what they need
    overrun: Overrun | None = None  # None: it fits, or nobody knows
    budgets: tuple[Budget, ...] = ()
    held: Held | None = None  # against a baseline; what it accepts is not among the findings

    def __post_init__(self) -> None:
        # The parts know their report, so that a notebook can show them as the report does.
        for name in ("memory", "census", "collectives", "findings"):
            mine: Any = getattr(self, name)
            object.__setattr__(self, name, mine.of(mine, self))

    def __repr__(self) -> str:
        target = self.target
        return (
            f"Report({target.module}, {target.topology or target.chip or 'chip unknown'}, "
            f"total {size(self.memory.total_bytes)}, peak {size(self.memory.peak_bytes)}, "
            f"{plural(len(self.findings), 'finding')})"
        )

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str | None:
        """The HTML report, for notebooks; None (the plain line is shown) without the extra `html`."""
        from hloscope.report.html.cells import whole

        return whole(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report, as documented in `schema.json`."""
        from hloscope.report.json import to_json

        return to_json(self)

    def to_text(self, *, width: int = 100, everything: bool = False) -> str:
        """The terminal report without colour, `width` (80 to 160) columns wide; `everything` cuts no table short."""
        from hloscope.report.terminal import draw, fit_width
        from hloscope.report.text import render

        width = fit_width(width)
        return draw(render(self, width=width, everything=everything), width)

    def to_html(self) -> str:
        """The report as one HTML page that opens offline. Raises UserError without the extra `html`."""
        from hloscope.report.html import render_html

        return render_html(self)

    def with_budgets(self, limits: Mapping[str, Limit]) -> Report:
        """The report held against limits by name. `UserError` if a figure is unknown."""
        return replace(self, budgets=measure(self, limits))

    def with_baseline(
        self, baseline: Baseline, ran: Iterable[str], step: StepName, removed: tuple[Entry, ...] = ()
    ) -> Report:
        """The report without the findings that a baseline accepts of `step`; `ran` are the codes of the rules that
        ran, `removed` the entries that it had before it was written anew."""
        held = replace(hold(self.findings, baseline, ran, step), removed=removed)
        return replace(self, findings=Findings.of(held.new), held=held)
