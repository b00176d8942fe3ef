"""What one execution of an instruction costs: HBM bytes, operations, and the time that the slowest of them takes.

time = the larger of compute and bandwidth + issue, and what nothing hides of the smaller, where
  bandwidth  HBM bytes / (hbm_efficiency x HBM bytes a second)
  compute    matrix operations / (matrix_efficiency x matrix operations a second), by operand type and passes
  issue      vector operations, transcendentals, loads and stores / what the cores issue in a second
Transfers and vector work add up because measured times do: the sum explains those of copies and of fusions alike, which
neither the larger of the two nor one share of the bandwidth does. Matrix units work beside both, but for the first and
last of the windows that an operation is cut into. Added is, where it was measured, what an operation through HBM takes
until its first bytes are there and its last written.
A chip's figures are in `devices.toml`; `docs/costs.md` says what of this was held against measured times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from hloscope.analysis.collectives import wire_costs
from hloscope.analysis.costs_kernels import (
    KernelWork,
    attention_work,
    grouped_work,
    has_row_limit,
    limited_work,
    told_work,
)
from hloscope.analysis.costs_work import Work, work_in
from hloscope.analysis.grouped import recognise
from hloscope.analysis.sums import total
from hloscope.analysis.traffic import VMEM, hbm_bytes, space_bytes
from hloscope.analysis.work import (
    body_opcodes,
    collective_opcode,
    has_collective,
    is_plumbing,
    started_result,
)
from hloscope.devices import VECTOR_ELEMENTS, Chip
from hloscope.hlo import alike_work, is_async_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.analysis.wire_place import Torus
    from hloscope.hlo import Instruction

_REGISTER_BYTES = 4 * VECTOR_ELEMENTS
_HOST = 5
# Of the slots for loads and stores the share that the compiler's plainest loops use (benchmarks/fusions_static.py).
_STREAMED_SLOTS = 2 / 3
# Less than a register of data is a scalar or a counter, of which nothing was measured.
_LEAST_BYTES = _REGISTER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One execution of an instruction, its own work only: a loop, a call or an asynchronous wrapper costs
    nothing beside what it runs. None is unknown.

    `flops` are matrix operations as the program asks for them, two for a multiplication with its addition.
    `bound_by` is the slowest term: "bandwidth", "compute", "issue", "latency" or "wire". Of `seconds`, `bound_seconds`
    are those of that term, and `latency_seconds` depend on neither bytes nor work. `limit` is "lower" if it may take
    longer than `seconds` (rows fetched one by one, an opaque kernel), "upper" if less (rows that may hold no token),
    else None.
    `source_of_figure` says by which model, and whether it was held against measured times on this chip.
    """

    hbm_bytes: int | None
    flops: int | None
    transcendentals: int | None
    seconds: float | None
    bound_by: str | None
    limit: str | None
    source_of_figure: str
    bound_seconds: float = 0.0
    latency_seconds: float = 0.0


_FREE = Cost(
    hbm_bytes=0,
    flops=0,
    transcendentals=0,
    seconds=0.0,
    bound_by=None,
    limit=None,
    source_of_figure="no work of its own",
)


class Costs:
    """Costs of a module's instructions on a chip, each worked out once. Without a chip every time is None.

    `valid_fractions` has the row counts of ragged buffers, and the share of them that hold tokens, None where nobody
    knows. `torus` is where the devices stand; without it no collective has a time.
    """

    def __init__(
        self, chip: Chip | None, valid_fractions: Mapping[int, float | None], torus: Torus | None
    ) -> None:
        self.chip = chip
        self._torus = torus
        self._valid_fractions = valid_fractions
        self._known: dict[Instruction, Cost] = {}

    def of(self, instruction: Instruction) -> Cost:
        """What one execution of the instruction costs. The start of an asynchronous operation has its cost,
        its done and updates have none."""
        known = self._known.get(instruction)
        if known is None:
            known = _FREE if is_plumbing(instruction) else self._cost(instruction)
            self._known[instruction] = known
        return known

    def _cost(self, instruction: Instruction) -> Cost:
        if is_collective(instruction):
            return self._collective(instruction)
        if instruction.opcode in ("custom-call", "ragged-dot"):
            return self._kernel(instruction)
        like = alike_work(instruction)
        if like is not instruction:
            return self.of(like)
        work = work_in(instruction)
        return self._timed(instruction, hbm_bytes(instruction), work, None, "counted")

    def _collective(self, instruction: Instruction) -> Cost:
        """The time on the wire, or of what the device does meanwhile if that takes longer."""
        wires = wire_costs(instruction, self._torus)
        own = self._timed(instruction, hbm_bytes(instruction), work_in(instruction), None, "counted")
        seconds = total(None if wire is None else wire.seconds for wire in wires)
        if seconds is None or own.seconds is None:
            unknown = "unknown: no place of its devices on the links"
            return replace(own, seconds=None, bound_by=None, limit=None, source_of_figure=unknown)
        if own.seconds > seconds:
            return replace(own, limit=None)
        place = wires[0].source if wires and wires[0] else "no"
        worth = "not calibrated" if self.chip is None else self.chip.worth("links")
        latency = sum(wire.latency_seconds for wire in wires if wire is not None)
        return replace(
            own,
            seconds=seconds,
            bound_by="wire",
            limit=None,
            source_of_figure=f"{place} links; {worth}",
            bound_seconds=seconds - latency,
            latency_seconds=latency,
        )

    def _kernel(self, call: Instruction) -> Cost:
        found = self._ragged(call) or attention_work(call) or told_work(call)
        if found is None:
            opaque = Work(flops=None, is_least=True)
            return self._timed(call, hbm_bytes(call), opaque, None, "opaque kernel, its operands read once")
        return self._timed(call, found.bytes, _as_work(found), found.limit, found.source)

    def _ragged(self, call: Instruction) -> KernelWork | None:
        """A kernel over a ragged buffer; None of any other."""
        grouped = recognise(call)
        if grouped is not None:
            return grouped_work(grouped, self._valid_fractions.get(grouped.rows))
        rows = next((n for n in self._valid_fractions if has_row_limit(call, n)), None)
        return None if rows is None else limited_work(call, rows, self._valid_fractions[rows])

    def _timed(
        self, instruction: Instruction, moved: int | None, work: Work, limit: str | None, source: str
    ) -> Cost:
        chip = self.chip
        elsewhere = _is_elsewhere(instruction)
        # No core works on what a copy engine moves, a SparseCore, or whoever fetches from the host.
        by_core = not elsewhere and not is_async_start(instruction.opcode)
        terms: dict[str, float | None] = {}
        if chip is not None and moved is not None:
            worked_on = _loaded_and_stored(instruction, moved) if by_core else 0
            terms = {
                "bandwidth": moved / (chip.hbm_efficiency * chip.hbm_bytes_per_second),
                "compute": _compute_seconds(chip, work),
                "issue": _issue_seconds(chip, work, worked_on),
            }
        known = {name: seconds for name, seconds in terms.items() if seconds is not None}
        bound = max(known, key=known.__getitem__) if known else None
        # Work that none of the terms sees, as in VMEM on a chip whose slots are not known, is not free.
        unseen = bound is not None and not known[bound]
        least = work.is_least or unseen or len(known) < len(terms) or elsewhere
        latency = 0.0
        if chip is not None and (moved or 0) >= _LEAST_BYTES and by_core:
            latency = chip.operation_seconds or 0.0
        term = bound if bound and known[bound] else None
        seconds = None if bound is None else _together(known, instruction) + latency
        if term and latency > known[term]:
            term = "latency"
        return Cost(
            hbm_bytes=moved,
            flops=work.flops,
            transcendentals=work.transcendentals,
            seconds=seconds,
            bound_by=term,
            limit=limit or ("lower" if least else None),
            source_of_figure=source if chip is None else f"{source}; {chip.worth(_measured_as(term, work))}",
            bound_seconds=known.get(term or "", latency),
            latency_seconds=latency,
        )


def is_collective(instruction: Instruction) -> bool:
    """Whether an instruction joins devices: a collective, or a fusion around one."""
    if collective_opcode(instruction.opcode):
        return True
    return instruction.opcode == "fusion" and has_collective(body_opcodes(instruction))


def _measured_as(term: str | None, work: Work) -> str:
    """The term whose measurements tell what a time is worth; of matrix units only products of bfloat16 were timed."""
    if term == "compute":
        return next((rate for rate in work.passes or {} if rate != "bf16"), term)
    return term or "bandwidth"


def _together(terms: Mapping[str, float], instruction: Instruction) -> float:
    """Transfers and vector work one after the other, matrix work beside them."""
    transfers, matrix = terms.get("bandwidth", 0.0), terms.get("compute", 0.0)
    streamed = transfers + terms.get("issue", 0.0)
    if not matrix:
        return streamed
    windows = _windows(instruction)
    return max(matrix, streamed) + (min(matrix, transfers) / windows if windows else 0.0)


def _windows(instruction: Instruction) -> int | None:
    """How many windows the compiler has cut an operation into; None where the module does not say."""
    config: object = instruction.backend_config.get("window_config")
    bounds = cast("dict[str, object]", config).get("iteration_bounds") if isinstance(config, dict) else None
    sizes = [str(n) for n in cast("list[object]", bounds)] if isinstance(bounds, list) else []
    known = sizes and all(n.isascii() and n.isdigit() and 0 < len(n) < 12 for n in sizes)
    return math.prod(map(int, sizes)) or None if known else None


def _as_work(kernel: KernelWork) -> Work:
    passes = {} if kernel.flops is None else {kernel.rate: kernel.flops}
    return Work(
        flops=kernel.flops,
        passes=passes,
        arithmetic=kernel.arithmetic or 0,
        transcendentals=kernel.transcendentals or 0,
        is_least=kernel.flops is None,
    )


def _is_elsewhere(instruction: Instruction) -> bool:
    """Whether something slower than HBM may take part: a SparseCore, the host's memory."""
    if instruction.execution_thread or instruction.computation.execution_thread:
        return True
    if started_result(instruction).memory_space == _HOST:
        return True
    for operand in instruction.operands:  # noqa: SIM110 - a loop, as millions are asked
        if operand.shape.memory_space == _HOST:
            return True
    return False


def _loaded_and_stored(instruction: Instruction, moved: int) -> int:
    """Bytes that a core loads into registers or stores: of values in HBM, by way of VMEM, and of those that lie there,
    which most instructions have none of."""
    for value in (instruction, *instruction.operands):
        if VMEM in value.shape.spaces:
            return moved + (space_bytes(instruction, VMEM) or 0)
    return moved


def _compute_seconds(chip: Chip, work: Work) -> float | None:
    rates = {"bf16": chip.bf16_per_second, "int8": chip.int8_per_second, "fp8": chip.fp8_per_second}
    total = 0.0
    for rate, operations in (work.passes or {}).items():
        per_second = rates[rate]
        if per_second is None:
            return None
        total += operations / (chip.matrix_efficiency * per_second)
    return total


def _issue_seconds(chip: Chip, work: Work, streamed: int) -> float | None:
    """The time to issue the vector operations that the program names, and to load and store `streamed` bytes."""
    slots, cycles = chip.slots, chip.cores * chip.clock_hz
    if not (work.arithmetic or work.transcendentals or streamed):
        return 0.0
    if slots is None:
        return 0.0
    return max(
        work.arithmetic / (slots.arithmetic * VECTOR_ELEMENTS * cycles),
        work.transcendentals / (slots.transcendental * VECTOR_ELEMENTS * cycles),
        streamed / (_STREAMED_SLOTS * (slots.load + slots.store) * _REGISTER_BYTES * cycles),
    )
