"""What hloscope counts of a fusion beside what the compiler's machine code says: bytes and instructions, no TPU needed.

    python benchmarks/fusions_static.py                    # v6e and tpu7x, two minutes
    python benchmarks/fusions_static.py v5p:2x2x1

`hloscope analyze` has the module alone and counts vector operations (docs/costs.md); here the same programs are
compiled with their machine code listed, as `hloscope kernel` does. Times are transfers at the rate of the HBM and
instructions at the clock, one after the other, and differ in the instructions only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fusion_steps

from hloscope.analysis.bundle import Analyses
from hloscope.capture import capture_step
from hloscope.devices import chips
from hloscope.hlo import read_hlo
from hloscope.report.kernel import load_kernel

STEPS = Path(fusion_steps.__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fusion. Seconds: transfers, instructions by machine code, and all of it as counted."""

    program: str
    name: str
    transfers: float
    instructions: float
    counted: float

    @property
    def error(self) -> float:
        """Of the counted time."""
        return self.counted / (self.transfers + self.instructions) - 1


def rows_of(program: str, topology: str) -> Iterator[Row]:
    """The fusions that a program is compiled to."""
    target = f"{STEPS}:{program}"
    report = load_kernel(target, topology=topology)
    artifact = capture_step(target, topology=topology, kernels=True)
    module = read_hlo(artifact.hlo_path).module
    costs = Analyses(module, chip=chips()[artifact.chip]).costs
    latency = chips()[artifact.chip].operation_seconds or 0.0
    for fusion in report.fusions:
        instruction = module.find(fusion.instruction)
        counted = None if instruction is None else costs.of(instruction).seconds
        if counted is None or fusion.transfer_seconds is None or fusion.compute_seconds is None:
            sys.exit(f"{program}: {fusion.name} has no time")
        yield Row(
            program=program,
            name=fusion.name,
            transfers=fusion.transfer_seconds,
            instructions=fusion.compute_seconds,
            counted=counted - latency,
        )


def main(topologies: list[str]) -> None:
    """Print a table for each topology."""
    for topology in topologies or ["v6e:2x2", "tpu7x:2x2x1"]:
        print(f"\n{topology:40}{'transfers':>11}{'bundles':>10}{'sum':>10}{'counted':>10}{'error':>9}")
        rows = [row for program in fusion_steps.PROGRAMS for row in rows_of(program, topology)]
        for row in rows:
            both = row.transfers + row.instructions
            print(
                f"{row.program:12}{row.name:28}{row.transfers * 1e6:8.0f} us{row.instructions * 1e6:7.0f} us"
                f"{both * 1e6:7.0f} us{row.counted * 1e6:7.0f} us{100 * row.error:+7.1f} %"
            )
        errors = [abs(row.error) for row in rows]
        print(f"{len(rows)} fusions: median error {median(errors):.1%}, largest {max(errors):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
