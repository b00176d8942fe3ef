"""Which implementation computes a grouped matmul, and why.

`regions.toml` lists where an implementation was found faster than XLA's, by device, operation and size; outside
every region XLA's runs. Nothing is guessed beyond what was compared.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp

from hloscope_kernels.chip import Chip, tpu_chip
from hloscope_kernels.ragged_dot import tokamax
from hloscope_kernels.ragged_dot.tiles import ROW_TILE, ElementBytes, parts, row_tile

Implementation = Literal["auto", "xla", "pallas_tpu", "pallas_gpu", "tokamax"]
Operation = Literal["dot", "transposed", "contraction"]
IMPLEMENTATIONS = ("auto", "xla", "pallas_tpu", "pallas_gpu", "tokamax")

_TPU_DTYPES = ("bfloat16", "float32")
_GPU_DTYPES = ("bfloat16", "float16", "float32")
# Four int32 a step are prefetched into SMEM, whose 1 MiB is shared with the rest of the program.
_MOST_STEPS = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One grouped matmul.

    Attributes:
      operation: `dot` is `[m, k]` times `[g, k, n]`, `transposed` times `[g, n, k]`, `contraction` is `[m, k]`
        and `[m, n]` over each group's rows.
      m: rows.
      k: the first operand's columns.
      n: the result's last width.
      groups: groups held here.
      dtypes: of both operands and of the result, by numpy's names.
    """

    operation: Operation
    m: int
    k: int
    n: int
    groups: int
    dtypes: tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where an implementation was found faster than XLA's; sizes are the least ones.

    Attributes:
      implementation: which.
      devices: parts of the names that jax gives the devices.
      operations: for which operations.
      dtypes: of the operands and of the result; empty where the source does not say, and then any.
      rows: of m.
      larger: of the larger of k and n.
      smaller: of the smaller of k and n.
      groups: of the groups held here.
      basis: "measured" on the device, or "static": compared in compiled modules and machine code.
      reason: what was found.
      source: where that is from.
    """

    implementation: Implementation
    devices: tuple[str, ...]
    operations: tuple[Operation, ...]
    dtypes: tuple[str, ...]
    rows: int
    larger: int
    smaller: int
    groups: int
    basis: Literal["measured", "static"]
    reason: str
    source: str

    def covers(self, problem: Problem, device: str) -> bool:
        """Whether a problem on a device lies in this region."""
        return (
            any(part in device for part in self.devices)
            and problem.operation in self.operations
            and (not self.dtypes or set(problem.dtypes) <= set(self.dtypes))
            and problem.m >= self.rows
            and max(problem.k, problem.n) >= self.larger
            and min(problem.k, problem.n) >= self.smaller
            and problem.groups >= self.groups
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What `auto` takes, and why in one sentence."""

    implementation: Implementation
    reason: str


def device_kind() -> str:
    """The device that the current trace is for, as jax names it ("TPU v6 lite", "NVIDIA H100 80GB HBM3", "cpu").

    Ahead of time that is the device of the abstract mesh; without one, the process's first device.
    """
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    device = cast("Any", jax.devices()[0] if abstract is None else abstract)
    return str(device.device_kind)


def resolve(implementation: str, problem: Problem, *, interpret: bool) -> str:
    """The implementation to run; ValueError when the one asked for cannot, with the reason."""
    if implementation == "auto":
        return choose(problem, device_kind()).implementation
    reason = unsupported(implementation, problem, device_kind(), interpret=interpret)
    if reason is not None:
        raise ValueError(f"ragged_dot: implementation {implementation!r} cannot run here: {reason}")
    return implementation


def choose(problem: Problem, device: str) -> Choice:
    """The implementation for a problem on a device, by the first region that covers it."""
    here = [region for region in regions() if any(part in device for part in region.devices)]
    for region in here:
        if not region.covers(problem, device):
            continue
        reason = unsupported(region.implementation, problem, device, interpret=False)
        if reason is not None:
            return Choice(implementation="xla", reason=f"{region.implementation} cannot run: {reason}")
        return Choice(
            implementation=region.implementation, reason=f"{region.reason} ({region.basis}: {region.source})"
        )
    if here:
        return Choice(implementation="xla", reason="outside the sizes for which another was found faster")
    return Choice(implementation="xla", reason=f"nothing was compared on {device}")


def unsupported(implementation: str, problem: Problem, device: str, *, interpret: bool = False) -> str | None:
    """Why an implementation cannot compute a problem on a device; None when it can.

    With `interpret` a Pallas kernel needs no device of its own.
    """
    match implementation:
        case "xla":
            return None
        case "tokamax":
            return None if tokamax.installed() else "Tokamax is not installed (pip install tokamax)"
        case "pallas_tpu":
            return _wrong_dtype(problem, _TPU_DTYPES) or _no_tpu(problem, device, interpret)
        case "pallas_gpu":
            return _wrong_dtype(problem, _GPU_DTYPES) or _no_gpu(device, interpret)
        case _:
            return f"there is no such implementation; there are {', '.join(IMPLEMENTATIONS)}"


@cache
def regions() -> tuple[Region, ...]:
    """The regions of `regions.toml`, in the order in which they are tried."""
    table = tomllib.loads(Path(__file__).with_name("regions.toml").read_text(encoding="utf-8"))
    return tuple(_region(entry) for entry in table["region"])


def _region(entry: dict[str, Any]) -> Region:
    fields: dict[str, Any] = {name: _frozen(value) for name, value in entry.items()}
    return Region(**fields)


def _frozen(value: Any) -> Any:
    return tuple(cast("list[str]", value)) if isinstance(value, list) else value


def _wrong_dtype(problem: Problem, known: tuple[str, ...]) -> str | None:
    wrong = [dtype for dtype in problem.dtypes if dtype not in known]
    return f"it computes {', '.join(known)}, not {wrong[0]}" if wrong else None


def _no_tpu(problem: Problem, device: str, interpret: bool) -> str | None:
    chip = tpu_chip()
    if "TPU" not in device and not interpret:
        return (
            f"it needs a TPU and this trace is for {device!r}; to compile for one ahead of time, trace inside "
            "jax.sharding.use_abstract_mesh(mesh.abstract_mesh) with a mesh of its devices"
        )
    if chip is not None and chip.generation not in ROW_TILE:
        return f"it has no tiles for {device}"
    tile = min(ROW_TILE.values()) if chip is None else _tile(problem, chip)
    steps = parts(problem.m, tile) + problem.groups + 1
    if steps > _MOST_STEPS:
        return f"{problem.m} rows and {problem.groups} groups take {steps} steps, SMEM holds {_MOST_STEPS}"
    return None


def _tile(problem: Problem, chip: Chip) -> int:
    lhs, rhs, out = (jnp.dtype(dtype).itemsize for dtype in problem.dtypes)
    return row_tile(chip, problem.operation, ElementBytes(lhs=lhs, rhs=rhs, out=out), problem.k)


def _no_gpu(device: str, interpret: bool) -> str | None:
    if "NVIDIA" in device or interpret:
        return None
    return f"it needs an NVIDIA GPU and this trace is for {device!r}"
