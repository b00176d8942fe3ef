"""What bounds a Pallas kernel or a fusion, from its machine code, its grid and what it fetches. Nothing is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hloscope.analysis.machine_code import MachineCode, Stretch
from hloscope.analysis.traffic import HBM, hbm_bytes, written_bytes

if TYPE_CHECKING:
    from hloscope.devices import Chip
    from hloscope.hlo import Instruction

# Which part of the core a unit's slots belong to.
_PARTS = {
    "MXU": "matrix unit",
    "XLU": "vector unit",
    "VALU": "vector unit",
    "VPOP": "vector unit",
    "EUP": "vector unit",
}
_MATRIX_UNIT = "MXU"
# A unit in use in fewer bundles than this does not bound the program: its bundles do, one a cycle.
_BUSY = 0.75
_VMEM = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One call of a kernel, or one run of a fusion, on one device. Bytes, seconds; None is unknown.

    `steps` of the grid's `all_steps` run: where rows are skipped by a limit, the valid share of them. `bundles` are
    those of one step, loops inside it at the trips that their exit tests name; `uncounted_loops` have trips that
    depend on data and count as none. `busy` is the share of each unit's slots in use in a step. `fills` and `spills`
    are instructions that move vector registers from and to VMEM, as listed. `read_bytes` and `written_bytes` cross HBM.
    `least_seconds` is the slower of transfers and bundles over all steps, with the first fetch and the last write,
    which nothing hides; `seconds` is that too where matrices are multiplied, else one after the other: measured times
    are so (docs/kernel_analysis.md). `bound_by` is the slower: "memory", "matrix unit", "vector unit" or "issue".
    `hidden_share` is the share of the shorter one that may run beside the longer.
    """

    name: str
    instruction: str
    grid: tuple[int | None, ...] | None
    all_steps: int | None
    steps: int | None
    valid_fraction: float | None
    bundles: int | None
    uncounted_loops: int
    busy: Mapping[str, float]
    fills: int | None
    spills: int | None
    vmem_bytes: int | None
    vmem_limit_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None
    transfer_seconds: float | None
    compute_seconds: float | None
    seconds: float | None
    least_seconds: float | None
    bound_by: str | None
    hidden_share: float | None
    source_of_figure: str


def kernel_time(
    call: Instruction,
    code: MachineCode | None,
    grid: Mapping[str, Any] | None,
    chip: Chip | None,
    *,
    valid_fraction: float | None = None,
    vmem_bytes: int | None = None,
) -> KernelTime:
    """The kernel that a custom call runs. `code` is its machine code, None where it could not be read; `grid` what
    `capture.kernels` found of its `pallas_call`; `valid_fraction` the share of its rows that are worked on;
    `vmem_bytes` what the compiler says that it has of VMEM."""
    full = None if grid is None else grid["full_grid"]
    steps = None if grid is None or full is None else active_steps(grid["grid"], full, valid_fraction)
    body = None if code is None else grid_loop(code, full)
    bundles, uncounted = (None, 0) if body is None else bundles_of(body)
    share = None if steps is None or full is None else steps / max(1, math.prod(full))
    blocks = [] if grid is None else _in_hbm(call, grid["blocks"])
    reads, writes = (None, None) if grid is None else _traffic(blocks, steps, share)
    compute = None if bundles is None or steps is None or chip is None else bundles * steps / chip.clock_hz
    return KernelTime(
        name=call.name if grid is None else grid["name"] or call.name,
        instruction=call.name,
        grid=None if grid is None else tuple(grid["grid"]),
        all_steps=None if full is None else math.prod(full),
        steps=steps,
        valid_fraction=valid_fraction,
        bundles=bundles,
        uncounted_loops=uncounted,
        vmem_bytes=vmem_bytes,
        vmem_limit_bytes=_vmem_limit(call),
        **_timed(code, body, reads, writes, compute, sum(b["bytes"] for b in blocks), chip),
    )


def fusion_time(
    fusion: Instruction,
    code: MachineCode | None,
    windows: Sequence[int],
    chip: Chip | None,
    *,
    vmem_bytes: int | None = None,
) -> KernelTime:
    """The loop that the compiler makes of a fusion or a plain operation. A step is one of its `windows` (so many by
    dimension), which the cores of a device share."""
    grid, steps = tuple(windows), math.prod(windows)
    moved, writes = hbm_bytes(fusion), written_bytes(fusion)
    reads = None if moved is None or writes is None else moved - writes
    body = None if code is None else grid_loop(code, grid)
    bundles, uncounted = (None, 0) if body is None else bundles_of(body)
    compute = None if bundles is None or chip is None else bundles * steps / chip.cores / chip.clock_hz
    return KernelTime(
        name=fusion.name,
        instruction=fusion.name,
        grid=grid,
        all_steps=steps,
        steps=steps,
        valid_fraction=None,
        bundles=bundles,
        uncounted_loops=uncounted,
        vmem_bytes=vmem_bytes,
        vmem_limit_bytes=_vmem_limit(fusion),
        **_timed(code, body, reads, writes, compute, (moved or 0) // steps, chip),
    )


def _timed(
    code: MachineCode | None,
    body: Stretch | None,
    reads: int | None,
    writes: int | None,
    compute: float | None,
    once: int,
    chip: Chip | None,
) -> dict[str, Any]:
    """The fields of `KernelTime` that follow from bytes and machine code; `once` are the bytes of one step."""
    transfer = None if reads is None or writes is None else _transfer(reads + writes, chip)
    busy = {} if code is None or body is None else _busy(code, body)
    edges = _transfer(once, chip)
    seconds = least = hidden = None
    if transfer is not None and compute is not None and edges is not None:
        apart = transfer + compute
        least = min(apart, max(transfer, compute) + edges)
        hidden = _hidden(apart, least, min(transfer, compute))
        seconds = least if busy.get(_MATRIX_UNIT) else apart
    return {
        "busy": busy,
        "fills": None if code is None else code.fills,
        "spills": None if code is None else code.spills,
        "read_bytes": reads,
        "written_bytes": writes,
        "transfer_seconds": transfer,
        "compute_seconds": compute,
        "seconds": seconds,
        "least_seconds": least,
        "bound_by": _bound(transfer, compute, busy),
        "hidden_share": hidden,
        "source_of_figure": _source(chip),
    }


def active_steps(grid: Sequence[int | None], full: Sequence[int], valid_fraction: float | None) -> int:
    """Grid steps that run. A dimension that is computed at run time is cut to the valid share, else the whole."""
    valid = 1.0 if valid_fraction is None else valid_fraction
    # 247.00000001 is 247 blocks, not 248.
    if None not in grid:
        return math.ceil(math.prod(full) * valid - 1e-6)
    cut = (
        math.ceil(size * valid - 1e-6) if known is None else size
        for known, size in zip(grid, full, strict=True)
    )
    return math.prod(cut)


def grid_loop(code: MachineCode, full: Sequence[int] | None) -> Stretch | None:
    """What runs once for each grid step: the loop that starts transfers, or the whole program of a single step."""
    loops = [loop for loop in code.loops if loop.read_bytes or loop.written_bytes or loop.read_bytes is None]
    if len(loops) == 1:
        return loops[0]
    return code.outside if full is not None and math.prod(full) == 1 else None


def bundles_of(stretch: Stretch) -> tuple[int, int]:
    """Bundles of one run of a stretch, loops inside at their known trips, and how many loops have none known."""
    total, uncounted = stretch.bundles, 0
    for loop in stretch.inner:
        inside, more = bundles_of(loop)
        total += inside * (loop.trips or 0)
        uncounted += more + (loop.trips is None)
    return total, uncounted


def _busy(code: MachineCode, body: Stretch) -> dict[str, float]:
    used, bundles = _used(body), bundles_of(body)[0]
    return {unit: used.get(unit, 0) / (slots * bundles) for unit, slots in code.capacity.items() if slots}


def _used(stretch: Stretch) -> dict[str, int]:
    total = dict(stretch.slots or {})
    for loop in stretch.inner:
        for unit, count in _used(loop).items():
            total[unit] = total.get(unit, 0) + count * (loop.trips or 0)
    return total


def _in_hbm(call: Instruction, blocks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The blocks of operands and results that lie in HBM: XLA may keep a small one in VMEM, where it costs none.
    Operands with blocks are the last ones, scalars come before them."""
    inputs = [block for block in blocks if not block["output"]]
    outputs = [block for block in blocks if block["output"]]
    operands = [o.shape for o in call.operands][len(call.operands) - len(inputs) :]
    results = call.shape.tuple_shapes or (call.shape,)
    if len(operands) != len(inputs) or len(results) != len(outputs):
        return list(blocks)
    pairs = (*zip(inputs, operands, strict=True), *zip(outputs, results, strict=True))
    return [block for block, shape in pairs if shape.memory_space == HBM]


def _traffic(
    blocks: Sequence[Mapping[str, Any]], steps: int | None, share: float | None
) -> tuple[int | None, int | None]:
    """Bytes read and written: each block as often as its index changes, or at every step where that is not known."""
    if steps is None or share is None:
        return None, None
    sums = {False: 0, True: 0}
    for block in blocks:
        times = steps if block["fetched"] is None else min(steps, math.ceil(block["fetched"] * share - 1e-6))
        sums[block["output"]] += times * block["bytes"]
    return sums[False], sums[True]


def _transfer(moved: int, chip: Chip | None) -> float | None:
    return None if chip is None else moved / (chip.hbm_efficiency * chip.hbm_bytes_per_second)


def _hidden(apart: float, least: float, shorter: float) -> float:
    """The share of the shorter of transfers and bundles that may run beside the longer."""
    return min(1.0, (apart - least) / shorter) if shorter else 1.0


def _bound(transfer: float | None, compute: float | None, busy: Mapping[str, float]) -> str | None:
    if transfer is None or compute is None:
        return None
    if transfer >= compute:
        return "memory"
    if not busy:
        return None
    unit = max(busy, key=lambda name: busy[name])
    return _PARTS.get(unit, "issue") if busy[unit] >= _BUSY else "issue"


def _vmem_limit(call: Instruction) -> int | None:
    """VMEM that the compiler lets the kernel have."""
    configs: object = call.backend_config.get("scoped_memory_configs")
    if not isinstance(configs, list):
        return None
    known = [cast("dict[str, object]", c) for c in cast("list[object]", configs) if isinstance(c, dict)]
    sizes = [str(c.get("size")) for c in known if str(c.get("memory_space")) == _VMEM]
    found = [int(size) for size in sizes if size.isdigit()]
    return max(found) if found else None


def _source(chip: Chip | None) -> str:
    if chip is None:
        return "machine code; the chip is not known"
    return f"machine code; {chip.worth('bandwidth')}"
