"""The report on a kernel: `hloscope kernel`. Its model, how it is made, and its JSON."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from hloscope.analysis.kernel_time import KernelTime, fusion_time, kernel_time
from hloscope.analysis.machine_code import read_machine_code
from hloscope.analysis.step_kernels import PALLAS
from hloscope.capture import capture_step
from hloscope.devices import Chip, chips, with_figures
from hloscope.errors import UserError
from hloscope.hlo import read_hlo

if TYPE_CHECKING:
    from hloscope.capture import Artifact, Event
    from hloscope.hlo import Instruction, Module

# Raised when a field goes or changes its meaning; a new field does not raise it.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """The kernels of one small step, and the fusions and copies beside them. `notes` are lines for the user."""

    source: str
    chip: str
    topology: str
    kernels: tuple[KernelTime, ...]
    fusions: tuple[KernelTime, ...]
    versions: dict[str, str | None]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; docs/kernel_analysis.md tells the fields."""
        return {
            "schema_version": SCHEMA_VERSION,
            "source": self.source,
            "chip": self.chip,
            "topology": self.topology,
            "versions": self.versions,
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "fusions": [asdict(fusion) for fusion in self.fusions],
            "notes": list(self.notes),
        }


def load_kernel(
    target: str,
    *,
    topology: str | None = None,
    valid_fraction: float | None = None,
    figures: str | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> KernelReport:
    """Compile `file.py:name`, a small step, and read the machine code of its kernels and fusions.

    `valid_fraction` (0 to 1] overrides the step's own. Raises UserError, also where the step has nothing to read, and
    CompileError.
    """
    artifact = capture_step(
        target, topology=topology, timeout=timeout, fresh=fresh, kernels=True, on_event=on_event
    )
    module = read_hlo(artifact.hlo_path).module
    calls = [i for i in module.instructions if i.custom_call_target == PALLAS]
    chip = chips().get(artifact.chip)
    if chip is not None and figures is not None:
        chip = with_figures(chip, figures)
    valid = artifact.valid_fraction if valid_fraction is None else valid_fraction
    listed = _listed(artifact)
    kernels = [_kernel(call, calls, listed, chip, valid) for call in calls]
    fusions = list(_fusions(module, listed, chip))
    if not kernels and not fusions:
        raise UserError(
            f"{target}: the compiled step has neither a Pallas kernel nor a fusion over several windows"
        )
    return KernelReport(
        source=target,
        chip=artifact.chip,
        topology=artifact.topology,
        kernels=tuple(kernels),
        fusions=tuple(fusions),
        versions=artifact.versions,
        notes=tuple(_notes(kernels, valid)),
    )


def _listed(artifact: Artifact) -> dict[str, Any]:
    assert artifact.kernels_path is not None
    with gzip.open(artifact.kernels_path, "rt", encoding="utf-8") as file:
        return cast("dict[str, Any]", json.load(file))


def _kernel(
    call: Instruction,
    calls: Sequence[Instruction],
    listed: dict[str, Any],
    chip: Chip | None,
    valid: float | None,
) -> KernelTime:
    program = next((p for p in listed["programs"] if p["instruction"] == call.name), None)
    code = None if program is None else read_machine_code(program["bundles"], program["utilization"])
    return kernel_time(
        call,
        code,
        _grid_of(call, calls, listed["grids"]),
        chip,
        valid_fraction=valid,
        vmem_bytes=None if program is None else program.get("vmem_bytes"),
    )


def _fusions(module: Module, listed: dict[str, Any], chip: Chip | None) -> Iterator[KernelTime]:
    """What runs over several windows: one window is a scalar, a mask or the like."""
    programs = {p["instruction"]: p for p in listed["programs"]}
    for computation in module.control_computations:
        for instruction in computation.instructions:
            program = programs.get(instruction.name)
            windows = None if program is None else program.get("windows")
            if program is not None and windows and math.prod(windows) > 1:
                code = read_machine_code(program["bundles"], program["utilization"])
                yield fusion_time(instruction, code, windows, chip, vmem_bytes=program.get("vmem_bytes"))


def _grid_of(
    call: Instruction, calls: Sequence[Instruction], grids: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The grid of the `pallas_call` that a custom call was made from: the instruction has its name."""
    base = call.name.rsplit(".", 1)[0] if call.name.rsplit(".", 1)[-1].isdigit() else call.name
    same = [grid for grid in grids if grid["name"] == base]
    if not same and len(calls) == len(grids) == 1:
        same = grids
    # Several of one name may differ: then nobody knows which is which.
    return same[0] if same and all(grid == same[0] for grid in same) else None


def _notes(kernels: Sequence[KernelTime], valid: float | None) -> list[str]:
    notes: list[str] = []
    if any(k.bundles is None and k.grid is not None for k in kernels):
        notes.append("the machine code of this libtpu could not be read: its listing has another form")
    if any(k.grid is None for k in kernels):
        notes.append(
            "the grid of a kernel could not be found in the traced step: its steps and bytes are unknown"
        )
    if any(k.uncounted_loops for k in kernels):
        notes.append("loops whose trips depend on data count as none")
    if valid is None and any(k.grid is not None and None in k.grid for k in kernels):
        notes.append(
            "the grid depends on data: taken at its largest; --valid-fraction 0.5 for half of the rows"
        )
    return notes
