"""The step on a clock: every control computation along its schedule, asynchronous work beside what runs meanwhile.

Instructions run one after another in the order of the schedule. An asynchronous operation begins at its start and
takes its own time beside them; where its done comes before it has finished, the step waits, and that wait is its
exposed time. Operations that use one thing (the links of the same mesh axes, the copy engines, a SparseCore) take turns
in the order of their starts; those that use different things run side by side. What they take from each other's HBM
bandwidth is not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hloscope.analysis.costs import is_collective
from hloscope.hlo import async_operation, is_async_start, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.analysis.costs import Costs
    from hloscope.hlo import Computation, Instruction, Module

Resource = tuple[str, ...]
_CALLS = frozenset({"while", "call", "conditional"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An asynchronous operation in one run of its computation, in seconds. None is unknown.

    `begins` is when it has what it uses, counted from the run's begin, `duration` what it takes, `exposed` what the
    step waits for it at its done. `resource` is what it uses.
    """

    start: Instruction
    work: Instruction
    resource: Resource
    begins: float
    duration: float | None
    exposed: float | None


@dataclass(slots=True, kw_only=True)
class Line:
    """One run of a computation. `seconds` counts what is known; `unknown` are instructions without a time
    and loops without a trip count, `own` the seconds of the instructions that run one by one, `calls` those of loops,
    calls and conditionals. `begins` tells when both begin, counted from the run's begin."""

    seconds: float = 0.0
    own: dict[int, float] = field(default_factory=dict[int, float])
    calls: dict[int, float] = field(default_factory=dict[int, float])
    begins: dict[int, float] = field(default_factory=dict[int, float])
    intervals: list[Interval] = field(default_factory=list[Interval])
    unknown: list[Instruction] = field(default_factory=list["Instruction"])
    chosen: dict[int, Computation] = field(default_factory=dict[int, "Computation"])  # branches


class Timeline:
    """The lines of a module's control computations, and how often each runs on the main line of the step.

    `resource` tells what an asynchronous operation uses, by the instruction that does its work.
    """

    def __init__(self, module: Module, costs: Costs, resource: Callable[[Instruction], Resource]) -> None:
        self.module = module
        self._costs = costs
        self._resource = resource
        self.lines: dict[int, Line] = {}
        for computation in module.control_computations:  # callees first
            self.lines[computation.id] = self._run(computation)
        self.runs = self._runs()

    @property
    def seconds(self) -> float:
        """The known seconds of the whole step."""
        return self.lines[self.module.entry.id].seconds

    def _run(self, computation: Computation) -> Line:
        line, flying, free = Line(), dict[int, tuple[Interval, float]](), dict[Resource, float]()
        for instruction in computation.schedule:
            opcode = instruction.opcode
            if is_async_start(opcode):
                flying[instruction.id] = self._launch(instruction, line, free)
            elif opcode.endswith("-done"):
                self._land(start_of(instruction), line, flying)
            elif opcode in _CALLS:
                line.begins[instruction.id] = line.seconds
                line.calls[instruction.id] = seconds = self._call(instruction, line)
                line.seconds += seconds
            else:
                self._step(instruction, line)
        for start in [interval.start for interval, _ in flying.values()]:
            self._land(start, line, flying)  # what nobody waits for ends with the computation
        return line

    def _step(self, instruction: Instruction, line: Line) -> None:
        seconds = self._costs.of(instruction).seconds
        if seconds is None:
            line.unknown.append(instruction)
        elif seconds:
            line.begins[instruction.id] = line.seconds
            line.own[instruction.id] = seconds
            line.seconds += seconds

    def _launch(self, start: Instruction, line: Line, free: dict[Resource, float]) -> tuple[Interval, float]:
        work = async_operation(start).work
        duration = self._duration(start, line)
        key = self._resource(work)
        begins = max(line.seconds, free.get(key, 0.0))
        free[key] = ends = begins + (duration or 0.0)
        interval = Interval(
            start=start, work=work, resource=key, begins=begins, duration=duration, exposed=None
        )
        return interval, ends

    def _duration(self, start: Instruction, line: Line) -> float | None:
        if start.opcode != "async-start":
            seconds = self._costs.of(start).seconds
            if seconds is None:
                line.unknown.append(start)
            return seconds
        called = start.called_computations
        inner = self.lines.get(called[0].id) if called else None
        if inner is None or inner.unknown:
            line.unknown.append(start)
            return None
        return inner.seconds

    def _land(self, start: Instruction, line: Line, flying: dict[int, tuple[Interval, float]]) -> None:
        if start.id not in flying:
            return  # begun in another computation
        interval, ends = flying.pop(start.id)
        wait = max(0.0, ends - line.seconds)
        line.seconds += wait
        line.intervals.append(replace(interval, exposed=None if interval.duration is None else wait))

    def _call(self, call: Instruction, line: Line) -> float:
        called = call.called_computations
        if call.opcode == "conditional":
            # Nobody knows which branch runs: the fastest is certain.
            fastest = min(called, key=lambda c: self.lines[c.id].seconds, default=None)
            if fastest is None:
                return 0.0
            if len(called) > 1:
                line.unknown.append(call)
            line.chosen[call.id] = fastest
            return self.lines[fastest.id].seconds
        if call.opcode == "call":
            return sum(self.lines[c.id].seconds for c in called)
        trips = self.module.trip_counts[call.id]
        if trips is None or len(called) < 2:
            line.unknown.append(call)
            return 0.0
        body, condition = (self.lines[c.id].seconds for c in called[:2])
        return trips * body + (trips + 1) * condition

    def _runs(self) -> Mapping[int, int]:
        """How often each computation's line is part of the step's, by computation id; what runs beside it, or
        how often is not known, is no part of it."""
        runs = {self.module.entry.id: 1}
        for computation in reversed(self.module.control_computations):
            times = runs.get(computation.id, 0)
            if times == 0:
                continue
            for instruction in computation.instructions:
                if instruction.opcode in _CALLS:
                    for called, n in self._callees(computation, instruction):
                        runs[called.id] = runs.get(called.id, 0) + times * n
        return runs

    def _callees(self, computation: Computation, call: Instruction) -> list[tuple[Computation, int]]:
        if call.opcode == "conditional":
            chosen = self.lines[computation.id].chosen.get(call.id)
            return [] if chosen is None else [(chosen, 1)]
        if call.opcode == "call":
            return [(c, 1) for c in call.called_computations]
        trips, called = self.module.trip_counts[call.id], call.called_computations
        return [] if trips is None or len(called) < 2 else [(called[0], trips), (called[1], trips + 1)]


def resource_of(axes: Callable[[Instruction], Sequence[str] | None]) -> Callable[[Instruction], Resource]:
    """What work uses: links by the mesh axes that `axes` tells of a collective, else a thread or the copy engines."""

    def resource(work: Instruction) -> Resource:
        thread = work.computation.execution_thread or work.execution_thread
        if is_collective(work):
            return ("links", " × ".join(axes(work) or ("of unknown axes",)))
        return ("thread", thread) if thread else ("copies",)

    return resource
