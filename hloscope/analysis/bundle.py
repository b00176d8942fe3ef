"""A module with all that is known about it, and every analysis of it, each computed when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.analysis.census import Census
    from hloscope.analysis.collectives import Collectives
    from hloscope.analysis.costs import Costs
    from hloscope.analysis.memory import Memory
    from hloscope.analysis.rows import Rows
    from hloscope.analysis.step_time import StepTime
    from hloscope.analysis.wire_place import Torus
    from hloscope.capture.artifact import MemoryStats
    from hloscope.devices import Chip
    from hloscope.hlo import HloFile, Module, protos
    from hloscope.hlo.compiler_schedule import CompilerSchedule


class Analyses:
    """What rules and reports look at. Everything but the module may be unknown: None or empty.

    `stats` are the compiler's own figures, `mesh` the axis sizes in mesh order and `mesh_device_ids` the
    device ids in row-major mesh order. `hbm_limit_bytes` is the memory of one device, in bytes.
    `parameter_names` name the entry's parameters in order. `valid_fraction` is the share (0 to 1] of a ragged
    buffer's rows that hold tokens, and `valid_fraction_source` says who told it. `chip` has the figures that
    times are estimated with, `topology` is its name, `device_coordinates` are x, y, z and core of the topology's
    devices by id, and `wraps` says which of its axes have joined ends. `compiler_warnings` are the lines that the
    compiler wrote, `compiler_schedule` is its scheduler's own estimate.
    """

    def __init__(
        self,
        module: Module,
        *,
        buffer_assignment: protos.BufferAssignment | None = None,
        stats: MemoryStats | None = None,
        mesh: Mapping[str, int] | None = None,
        mesh_device_ids: Sequence[int] | None = None,
        hbm_limit_bytes: int | None = None,
        parameter_names: Sequence[str] = (),
        valid_fraction: float | None = None,
        valid_fraction_source: str | None = None,
        chip: Chip | None = None,
        topology: str | None = None,
        device_coordinates: Sequence[Sequence[int]] | None = None,
        wraps: Sequence[bool] | None = None,
        compiler_warnings: Sequence[str] = (),
        compiler_schedule: CompilerSchedule | None = None,
    ) -> None:
        self.module = module
        self.buffer_assignment = buffer_assignment
        self.stats = stats
        self.mesh = mesh
        self.mesh_device_ids = mesh_device_ids
        self.hbm_limit_bytes = hbm_limit_bytes
        self.parameter_names = tuple(parameter_names)
        self.valid_fraction = valid_fraction
        self.valid_fraction_source = valid_fraction_source
        self.chip = chip
        self.topology = topology
        self.device_coordinates = device_coordinates
        self.wraps = wraps
        self.compiler_warnings = tuple(compiler_warnings)
        self.compiler_schedule = compiler_schedule

    @classmethod
    def of_file(cls, file: HloFile) -> Analyses:
        """The analyses of what a file holds, nothing else being known."""
        return cls(file.module, buffer_assignment=file.buffer_assignment)

    @cached_property
    def memory(self) -> Memory:
        """Memory figures, the live bytes over the schedule and the peak."""
        from hloscope.analysis.memory import analyze_memory

        return analyze_memory(
            self.module,
            self.buffer_assignment,
            stats=self.stats,
            hbm_limit_bytes=self.hbm_limit_bytes,
            parameter_names=self.parameter_names,
        )

    @cached_property
    def census(self) -> Census:
        """Families of fusions, custom calls and copies."""
        from hloscope.analysis.census import take_census

        return take_census(self.module, self.costs)

    @cached_property
    def collectives(self) -> Collectives:
        """Collectives by kind, shape and mesh axis."""
        from hloscope.analysis.collectives import find_collectives

        return find_collectives(
            self.module, mesh=self.mesh, mesh_device_ids=self.mesh_device_ids, torus=self.torus
        )

    @cached_property
    def torus(self) -> Torus | None:
        """Where the module's devices stand on the torus of chips; None where that is not known."""
        from hloscope.analysis.wire_place import find_torus

        return find_torus(
            self.module,
            chip=self.chip,
            topology=self.topology,
            coordinates=self.device_coordinates,
            wraps=self.wraps,
        )

    @cached_property
    def rows(self) -> Rows:
        """Which buffers hold ragged rows."""
        from hloscope.analysis.rows import analyze_rows

        return analyze_rows(self.module)

    @cached_property
    def costs(self) -> Costs:
        """What one execution of each instruction costs, in bytes, operations and seconds."""
        from hloscope.analysis.costs import Costs

        return Costs(self.chip, self._valid_fractions(), self.torus)

    @cached_property
    def step_time(self) -> StepTime:
        """The time of the step, estimated along its schedule, and what it is made of."""
        from hloscope.analysis.step_time import estimate_step

        return estimate_step(
            self.module, self.costs, self.census, self.collectives, scheduler=self.compiler_schedule
        )

    def _valid_fractions(self) -> Mapping[int, float | None]:
        """Row counts of ragged buffers, and the share of them that hold tokens where all such buffers agree."""
        from hloscope.analysis.ragged import valid_rows

        found: dict[int, set[float | None]] = {}
        for buffer in self.rows.buffers:
            found.setdefault(buffer.rows, set()).add(valid_rows(self, buffer).fraction)
        return {rows: fractions.pop() if len(fractions) == 1 else None for rows, fractions in found.items()}

    def with_chip(self, chip: Chip) -> Analyses:
        """The same module with other figures of its chip; what does not depend on them is not computed again."""
        other = copy(self)
        other.chip = chip
        for name in ("costs", "torus", "collectives", "step_time"):
            other.__dict__.pop(name, None)
        return other
