"""The time of a step, estimated along its schedule, and what it is made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.analysis.costs import is_collective
from hloscope.analysis.place import Phase, layer_of
from hloscope.analysis.step_timeline import Timeline, resource_of
from hloscope.analysis.sums import times, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hloscope.analysis.census import Census
    from hloscope.analysis.collectives import Collectives
    from hloscope.analysis.costs import Costs
    from hloscope.devices import Chip
    from hloscope.hlo import Instruction, Module
    from hloscope.hlo.compiler_schedule import CompilerSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """The time of instructions that are alike, all executions in a step. None is unknown.

    `seconds` is what they take, `step_seconds` what they add to the step: less where they run beside other work.
    `bytes` are HBM bytes and `flops` matrix operations, at the valid rows of a grouped matmul where those are known.
    `bound_by`, `limit` and `source_of_figure` are those of the costliest of them (see `Cost`).
    """

    seconds: float | None
    step_seconds: float | None
    bytes: int | None
    flops: int | None
    bound_by: str | None
    limit: str | None
    source_of_figure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTime:
    """A loop: its trips, the seconds of one trip and of all of them in a step. None is unknown."""

    loop: Instruction
    trips: int | None
    trip_seconds: float | None
    step_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """A family of work on the roofline, all phases and shapes together.

    `intensity` is matrix operations for each HBM byte; `compute_share` and `bandwidth_share` say how much of the
    chip's peak rates (0 to 1) the work attains in the estimated time.
    """

    family: str
    seconds: float
    flops: int
    bytes: int
    intensity: float | None
    compute_share: float
    bandwidth_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """An estimate of the time of one step on one device, in seconds. None is unknown.

    `seconds` is the sum of `by_phase`, of `by_bound` and of the step seconds of what runs on its own.
    `by_layer` is another sum to it, by numbered layers in their order, None for what stands outside of them; it is
    empty where the program numbers none (a layer may be a trip of a loop).
    `exposed_seconds` is the part that waits for asynchronous work or is a collective, `hidden_seconds` what
    asynchronous work takes beside other work. `lower_seconds` and `upper_seconds` are parts of `seconds` whose
    figures are lower and upper limits.
    `unknown` are instructions without a time, loops without a trip count and conditionals: with any, `seconds` is
    what the step takes at least. `families` and `collectives` are in the order of the census and of the collectives.
    """

    seconds: float | None
    exposed_seconds: float | None
    hidden_seconds: float | None
    lower_seconds: float | None
    upper_seconds: float | None
    by_phase: dict[str, float]
    by_layer: dict[str | None, float]
    by_bound: dict[str, float]
    unknown: tuple[Instruction, ...]
    loops: tuple[LoopTime, ...]
    families: tuple[GroupTime, ...]
    collectives: tuple[GroupTime, ...]
    roofline: tuple[RooflinePoint, ...]
    calibrated: bool
    model: str | None  # by whose figures, one line
    scheduler: CompilerSchedule | None = None  # what the compiler's own scheduler expects, by crude costs
    timeline: Timeline | None = None  # what it was summed from


def estimate_step(
    module: Module,
    costs: Costs,
    census: Census,
    collectives: Collectives,
    *,
    scheduler: CompilerSchedule | None = None,
) -> StepTime:
    """The estimate for a module. Without a chip, or of a module that is not scheduled, every time is None.

    `scheduler` is handed on as it is: it is another estimate, beside this one.
    """
    lines = [f.instructions for f in census.families]
    kinds = [c.instructions for c in collectives.collectives]
    if costs.chip is None or not module.is_scheduled:
        return _untimed(costs, lines, kinds, scheduler)
    axes = {i.id: c.mesh_axes for c in collectives.collectives for i in c.instructions}
    timeline = Timeline(module, costs, resource_of(lambda work: axes.get(work.id)))
    parts = list(_parts(timeline, costs))
    phases = {i.id: f.phase for f in census.families for i in f.instructions}
    added: dict[int, float] = defaultdict(float)
    for part in parts:
        added[part.work.id] += part.step_seconds
    families = tuple(_group(line, costs, added) for line in lines)
    return StepTime(
        seconds=timeline.seconds,
        exposed_seconds=sum(p.step_seconds for p in parts if p.waits),
        hidden_seconds=sum(p.hidden_seconds for p in parts),
        lower_seconds=sum(p.step_seconds for p in parts if p.limit == "lower"),
        upper_seconds=sum(p.step_seconds for p in parts if p.limit == "upper"),
        by_phase=_sums(parts, lambda p: phases.get(p.work.id, Phase.UNKNOWN.value)),
        by_layer=_layers(parts),
        by_bound=_sums(parts, lambda p: "exposed" if p.waits else p.bound_by or Phase.UNKNOWN.value),
        unknown=tuple(_unknown_work(timeline)),
        loops=tuple(_loops(timeline)),
        families=families,
        collectives=tuple(_group(kind, costs, added) for kind in kinds),
        roofline=tuple(_roofline(census, families, costs.chip)),
        calibrated=costs.chip.figures_from is not None or set(costs.chip.measured) >= set(_TERMS),
        model=_model(costs.chip),
        scheduler=scheduler,
        timeline=timeline,
    )


def _untimed(
    costs: Costs,
    lines: list[tuple[Instruction, ...]],
    kinds: list[tuple[Instruction, ...]],
    scheduler: CompilerSchedule | None,
) -> StepTime:
    return StepTime(
        seconds=None,
        exposed_seconds=None,
        hidden_seconds=None,
        lower_seconds=None,
        upper_seconds=None,
        by_phase={},
        by_layer={},
        by_bound={},
        unknown=(),
        loops=(),
        families=tuple(_group(line, costs, None) for line in lines),
        collectives=tuple(_group(kind, costs, None) for kind in kinds),
        roofline=(),
        calibrated=False,
        model=None,
        scheduler=scheduler,
    )


# The terms that a chip's figures can be calibrated for, in words with the share that is reached.
_TERMS: dict[str, Callable[[Chip], str]] = {
    "bandwidth": lambda chip: f"transfers at {100 * chip.hbm_efficiency:g} % of HBM",
    "compute": lambda chip: f"matrix units at {100 * chip.matrix_efficiency:g} %",
    "links": lambda chip: f"links at {100 * chip.ici.efficiency:g} %",
}


def _model(chip: Chip) -> str:
    """Whose figures, and which of them were held against measured times."""
    words = {term: said(chip) for term, said in _TERMS.items()}
    if chip.figures_from:
        return f"{chip.name} with the figures of {chip.figures_from}: {', '.join(words.values())}"
    known = ", ".join(said for term, said in words.items() if term in chip.measured)
    guessed = ", ".join(said for term, said in words.items() if term not in chip.measured)
    parts = [f"calibrated: {known}" if known else "", f"not calibrated: {guessed}" if guessed else ""]
    return f"{chip.name}, {'; '.join(part for part in parts if part)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one instruction adds to the step, all its runs on the main line together."""

    work: Instruction
    step_seconds: float
    hidden_seconds: float
    bound_by: str | None
    limit: str | None
    waits: bool  # for asynchronous work, or for other devices


def _parts(timeline: Timeline, costs: Costs) -> Iterator[_Part]:
    for computation in timeline.module.control_computations:
        runs, line = timeline.runs.get(computation.id, 0), timeline.lines[computation.id]
        if not runs:
            continue
        by_id = computation.by_id
        for ident, seconds in line.own.items():
            work = by_id[ident]
            yield _part(work, costs, runs * seconds, 0.0, waits=is_collective(work))
        for interval in line.intervals:
            exposed, duration = interval.exposed or 0.0, interval.duration or 0.0
            hidden = max(0.0, duration - exposed)
            yield _part(interval.work, costs, runs * exposed, runs * hidden, waits=True)


def _part(work: Instruction, costs: Costs, step: float, hidden: float, *, waits: bool) -> _Part:
    cost = costs.of(work)
    return _Part(
        work=work,
        step_seconds=step,
        hidden_seconds=hidden,
        bound_by=cost.bound_by,
        limit=cost.limit,
        waits=waits,
    )


def _unknown_work(timeline: Timeline) -> Iterator[Instruction]:
    for computation in timeline.module.control_computations:
        if timeline.runs.get(computation.id):
            yield from timeline.lines[computation.id].unknown


def _sums(parts: Iterable[_Part], name: Callable[[_Part], str]) -> dict[str, float]:
    """Step seconds by a name of each part, most first."""
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        if part.step_seconds:
            sums[name(part)] += part.step_seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _layers(parts: Sequence[_Part]) -> dict[str | None, float]:
    """Step seconds by layer, in the order of their numbers, what stands outside of them last."""
    sums: dict[str | None, float] = defaultdict(float)
    for part in parts:
        if part.step_seconds:
            sums[layer_of(part.work)] += part.step_seconds
    outside = sums.pop(None, 0.0)
    named = {name: sums[name] for name in sorted(filter(None, sums), key=_by_number)}
    return {**named, None: outside} if named else {}


def _by_number(layer: str) -> tuple[str, int]:
    name = layer.rstrip("0123456789")
    return name, int(layer[len(name) :])


def _loops(timeline: Timeline) -> list[LoopTime]:
    """Loops of the main line, dearest first."""
    found: list[LoopTime] = []
    for computation in timeline.module.control_computations:
        runs = timeline.runs.get(computation.id, 0)
        loops = (i for i in computation.instructions if runs and i.opcode == "while")
        found += [_loop(loop, runs, timeline) for loop in loops if len(loop.called_computations) >= 2]
    return sorted(found, key=lambda f: -(f.step_seconds or 0.0))


def _loop(loop: Instruction, runs: int, timeline: Timeline) -> LoopTime:
    trips = timeline.module.trip_counts[loop.id]
    body, condition = (timeline.lines[c.id].seconds for c in loop.called_computations[:2])
    return LoopTime(
        loop=loop,
        trips=trips,
        trip_seconds=body + condition,
        step_seconds=None if trips is None else runs * (trips * body + (trips + 1) * condition),
    )


def _group(instructions: Sequence[Instruction], costs: Costs, added: Mapping[int, float] | None) -> GroupTime:
    """Instructions that are alike; `added` is what each adds to the step, None where nobody knows."""
    module = instructions[0].module
    runs = [module.executions(i.computation) for i in instructions]
    each = [costs.of(i) for i in instructions]
    seconds = total(times(n, c.seconds) for n, c in zip(runs, each, strict=True))
    dearest = max(each, key=lambda c: c.seconds or 0.0)
    step = None
    if seconds is not None and added is not None:
        step = sum(added.get(i.id, 0.0) for i in instructions)
    return GroupTime(
        seconds=seconds,
        step_seconds=step,
        bytes=total(times(n, c.hbm_bytes) for n, c in zip(runs, each, strict=True)),
        flops=total(times(n, c.flops) for n, c in zip(runs, each, strict=True)),
        bound_by=dearest.bound_by,
        limit=dearest.limit,
        source_of_figure=dearest.source_of_figure,
    )


def _roofline(census: Census, groups: Sequence[GroupTime], chip: Chip) -> Iterator[RooflinePoint]:
    """Families whose figures are all known, dearest first."""
    rows: dict[str, tuple[float, int, int]] = {}
    for family, time in zip(census.families, groups, strict=True):
        if time.seconds is None or time.flops is None or time.bytes is None:
            continue
        seconds, flops, moved = rows.get(family.family, (0.0, 0, 0))
        rows[family.family] = (seconds + time.seconds, flops + time.flops, moved + time.bytes)
    for name, (seconds, flops, moved) in sorted(rows.items(), key=lambda row: -row[1][0]):
        if seconds:
            yield RooflinePoint(
                family=name,
                seconds=seconds,
                flops=flops,
                bytes=moved,
                intensity=flops / moved if moved else None,
                compute_share=flops / seconds / chip.bf16_per_second,
                bandwidth_share=moved / seconds / chip.hbm_bytes_per_second,
            )
