"""The Pallas kernels of a step: how often each is called, what it moves, and how long it takes at least."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hloscope.analysis.place import phase_of_name, provenance
from hloscope.analysis.work import running, shape_text

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses
    from hloscope.analysis.work import Running
    from hloscope.hlo import Instruction, SourceFrame

Number = TypeVar("Number", int, float)

PALLAS = "tpu_custom_call"
# The number that XLA puts after a name, and the marks of its copies.
_SUFFIX = re.compile(r"(\.\d+|\.clone|\.remat\d*|\.cloned)+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKernel:
    """Calls of one kernel on one shape in one phase. `bytes` (HBM) and `seconds` are of all executions of a step on
    one device; `limit` is "lower" if they may take longer, "upper" if less. None is unknown."""

    name: str
    phase: str
    shape: str
    count: int
    executions: int | None
    bytes: int | None
    seconds: float | None
    limit: str | None
    source_of_figure: str
    source: SourceFrame | None
    instructions: tuple[Instruction, ...]


def step_kernels(analyses: Analyses) -> tuple[StepKernel, ...]:
    """Every Pallas kernel of the step, the longest first."""
    found: dict[tuple[str, str, str], list[tuple[Instruction, Running]]] = {}
    for computation, place in running(analyses.module).items():
        for call in computation.instructions:
            if call.custom_call_target != PALLAS:
                continue
            phase = phase_of_name(provenance(call).op_name).value
            key = (_SUFFIX.sub("", call.name), phase, shape_text(call.shape))
            found.setdefault(key, []).append((call, place))
    kernels = [_kernel(analyses, *key, calls) for key, calls in found.items()]
    return tuple(
        sorted(kernels, key=lambda k: (-(k.seconds or 0), -(k.bytes or 0), k.name, k.phase, k.shape))
    )


def _kernel(
    analyses: Analyses, name: str, phase: str, shape: str, calls: list[tuple[Instruction, Running]]
) -> StepKernel:
    costs = [analyses.costs.of(call) for call, _ in calls]
    runs = [place.executions for _, place in calls]
    limits = {cost.limit for cost in costs}
    return StepKernel(
        name=name,
        phase=phase,
        shape=shape,
        count=len(calls),
        executions=None if None in runs else sum(n for n in runs if n is not None),
        bytes=_sum([cost.hbm_bytes for cost in costs], runs),
        seconds=_sum([cost.seconds for cost in costs], runs),
        limit=limits.pop() if len(limits) == 1 else "lower" if "lower" in limits else None,
        source_of_figure=costs[0].source_of_figure,
        source=provenance(calls[0][0]).source,
        instructions=tuple(call for call, _ in calls),
    )


def _sum(figures: list[Number | None], runs: list[int | None]) -> Number | None:
    """Each figure as often as it runs; None where one is unknown."""
    known = [f * n for f, n in zip(figures, runs, strict=True) if f is not None and n is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(figures) else None
