"""Where implementations of a grouped matmul were found faster than XLA's: the table of `hloscope_kernels`, read as
data (importing the package would import jax)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

from hloscope.analysis.grouped import GroupedMatmul
from hloscope.hlo import Instruction

_TABLE = ("ragged_dot", "regions.toml")
# The table has jax's names of devices.
_DEVICES = {
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}
_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
# The kernels of hloscope_kernels by name, with what they compute and how many integer vectors they take.
_OWN = re.compile(r"(?:^|_)ragged_(dot_transposed|dot|contraction)(?:_|\.|$)")
_OWN_VECTORS = {"dot": 5, "transposed": 5, "contraction": 4}

Operation = Literal["dot", "transposed", "contraction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One grouped matmul, as the table has them.

    `implementation` is "pallas_tpu" (hloscope_kernels) or "xla". `m` are rows, `k` the first operand's columns, `n`
    the last dimension of the result. `dtypes` are those of both operands and of the result, by numpy's names.
    """

    implementation: str
    operation: Operation
    m: int
    k: int
    n: int
    groups: int
    dtypes: tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where an implementation was found faster than XLA's; sizes are the least ones. See `regions.toml`."""

    implementation: str
    devices: tuple[str, ...]
    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    rows: int
    larger: int
    smaller: int
    groups: int
    basis: str  # "measured" on the device, or "static": compared in compiled modules and machine code
    reason: str
    source: str

    def misses(self, problem: Problem) -> tuple[str, ...]:
        """What keeps a problem out of the region, a few words each; nothing where it lies in it."""
        least = {
            "rows": (problem.m, self.rows),
            "the wider side": (max(problem.k, problem.n), self.larger),
            "the narrower side": (min(problem.k, problem.n), self.smaller),
            "groups": (problem.groups, self.groups),
        }
        found = [f"{name}: {has:,}, at least {need:,}" for name, (has, need) in least.items() if has < need]
        other = sorted(set(problem.dtypes) - set(self.dtypes)) if self.dtypes else []
        return (*found, *(f"{dtype}, only {', '.join(self.dtypes)}" for dtype in other))


def regions_of(operation: Operation, chip: str) -> tuple[Region, ...]:
    """The regions for an operation on a chip by its name (`v6e`); none where nothing was compared."""
    device = _DEVICES.get(chip, "")
    return tuple(
        r for r in _regions() if operation in r.operations and device and any(d in device for d in r.devices)
    )


def problem_of(matmul: GroupedMatmul) -> Problem | None:
    """A grouped matmul by XLA or by hloscope_kernels as the table has it; None of any other implementation.

    That it is one is told by its operands (see `grouped`); whose it is only its name and form can tell.
    """
    call = matmul.instruction
    weights = next(
        (o for o in call.operands if o.shape.dimensions[:1] == (matmul.groups,) and _is_stack(o)), None
    )
    own = _OWN.search(call.name)
    operation = _operation(matmul, weights)
    implementation = None
    if own is not None and len(matmul.sizes) == _OWN_VECTORS.get(operation, 0):
        implementation = "pallas_tpu"
    elif call.opcode == "ragged-dot" or "ragged_dot_tiling" in call.proto.frontend_attributes.map:
        implementation = "xla"
    right = weights if matmul.form == "gmm" else matmul.buffers[1]
    if implementation is None or right is None:
        return None
    types = [_TYPES.get(s.element_type) for s in (matmul.buffers[0].shape, right.shape, call.shape)]
    if None in types:
        return None
    k, n = _widths(matmul)
    return Problem(
        implementation=implementation,
        operation=operation,
        m=matmul.rows,
        k=k,
        n=n,
        groups=matmul.groups,
        dtypes=cast("tuple[str, str, str]", tuple(types)),
    )


def _is_stack(operand: Instruction) -> bool:
    return len(operand.shape.dimensions) == 3


def _widths(matmul: GroupedMatmul) -> tuple[int, int]:
    if matmul.form == "tgmm":
        _, k, n = matmul.instruction.shape.dimensions
        return k, n
    return matmul.buffers[0].shape.dimensions[1], matmul.instruction.shape.dimensions[1]


def _operation(matmul: GroupedMatmul, weights: Instruction | None) -> Operation:
    if matmul.form == "tgmm":
        return "contraction"
    k, n = _widths(matmul)
    straight = weights is None or weights.shape.dimensions[1:] == (k, n)
    return "dot" if straight else "transposed"


@cache
def _regions() -> tuple[Region, ...]:
    spec = find_spec("hloscope_kernels")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return ()
    table = tomllib.loads(Path(folders[0], *_TABLE).read_text(encoding="utf-8"))
    return tuple(Region(**{name: _frozen(v) for name, v in entry.items()}) for entry in table["region"])


def _frozen(value: Any) -> Any:
    return tuple(cast("list[str]", value)) if isinstance(value, list) else value
