"""Pallas kernels of a step, in the worker: their grids, from the traced program, and their machine code, from the dump.

libtpu lists machine code only if it is told so before it makes its first topology, so the launcher asks for it.
"""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

# What asks libtpu for the listings; `{folder}` is where they go.
DUMP_FLAGS = (
    "--xla_jf_dump_to={folder}",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=final_bundles|final_hlo-static-per-bundle",
)
DUMP_PREFIX = "--xla_jf_dump_"
_BUNDLES = "-02-final_bundles.txt"
_VMEM = "-TLP-03-vmem_report.html"
_UTILIZATION = "-00-final_hlo-static-per-bundle-utilization.txt"
_BOUNDS = re.compile(r'^ *(?:ROOT )?%([^ ]+) = .*?"iteration_bounds":\[([^\]]*)\]', re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,12}")
# Index maps are evaluated at every grid point, up to so many.
_MOST_POINTS = 2**20


def without_dump_flags(flags: str) -> str:
    """Compiler flags without those that ask for listings, which change nothing in the outcome."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(DUMP_PREFIX))


def write_kernels(path: Path, traced: Any, folder: Path, compiled: str) -> None:
    """Write grids and listings as JSON, gzip: `grids` and `programs`. `compiled` is the module's text: the windows of
    its fusions are not in the dump, which is written before the compiler has chosen them."""
    windows = _windows(compiled)
    programs = [p | {"windows": windows.get(p["instruction"])} for p in _listings(folder)]
    found = {"grids": kernel_grids(traced), "programs": programs}
    with gzip.open(path, "wt", compresslevel=6, encoding="utf-8") as file:
        json.dump(found, file)


def _windows(compiled: str) -> dict[str, list[int]]:
    """How many windows each instruction's result is cut into, by dimension."""
    return {name: [int(n) for n in _NUMBER.findall(bounds)] for name, bounds in _BOUNDS.findall(compiled)}


def _listings(folder: Path) -> Iterator[dict[str, Any]]:
    """What libtpu listed for each instruction: name, bundles, the slots that they use, and VMEM in bytes."""
    vmem = _vmem(folder)
    for file in sorted(folder.glob(f"*{_BUNDLES}")):
        stamp, _, name = file.name.removesuffix(_BUNDLES).partition("-")
        if name == "TLP" or name.startswith("<"):  # the program around the instructions
            continue
        table = folder / f"{stamp}-{name}{_UTILIZATION}"
        yield {
            "instruction": name,
            "bundles": file.read_text(errors="replace"),
            "utilization": table.read_text(errors="replace") if table.is_file() else None,
            "vmem_bytes": vmem.get(name),
        }


def _vmem(folder: Path) -> dict[str, int]:
    """VMEM that each instruction has for itself, from libtpu's report; empty where it reads differently."""
    found: dict[str, int] = {}
    for file in folder.glob(f"*{_VMEM}"):
        _, _, data = file.read_text(errors="replace").partition("const DATA =")
        try:
            parts, _ = json.JSONDecoder().raw_decode(data.lstrip())
            found |= {name: int(part["total_size"]) for name, part in parts["hlo_breakdowns"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def kernel_grids(traced: Any) -> list[dict[str, Any]]:
    """Every `pallas_call` of a traced step: `name`, `grid` (None for a dimension that is computed at run time),
    and `blocks`: `bytes` of one, how many there `are`, how often one is `fetched` when the whole grid runs (None
    where that depends on data), and whether it is an `output`. Empty where jax shows them in another way."""
    try:
        return [_grid(equation.params) for equation in _calls(traced.jaxpr)]
    except (AttributeError, KeyError, TypeError, ValueError):
        # Not public: another version of jax may keep them elsewhere.
        return []


def _calls(jaxpr: Any) -> Iterator[Any]:
    inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
    for equation in getattr(inner, "eqns", ()):
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for value in equation.params.values():
            parts = cast("tuple[Any, ...]", value if isinstance(value, list | tuple) else (value,))
            for part in parts:
                if hasattr(getattr(part, "jaxpr", part), "eqns"):
                    yield from _calls(part)


def _grid(params: dict[str, Any]) -> dict[str, Any]:
    mapping = params["grid_mapping"]
    sizes = [size if isinstance(size, int) else None for size in mapping.grid]
    blocks = [_block(block) for block in mapping.block_mappings]
    outputs = range(len(blocks) - mapping.num_outputs, len(blocks))
    full = _full_grid(sizes, [blocks[i]["are"] for i in outputs])
    for number, block in enumerate(blocks):
        block["output"] = number in outputs
        block["fetched"] = None if full is None else _fetched(mapping.block_mappings[number], full)
    return {"name": params.get("name") or "", "grid": sizes, "full_grid": full, "blocks": blocks}


def _block(block: Any) -> dict[str, Any]:
    array = getattr(block, "array_aval", None) or block.array_shape_dtype
    shape = [getattr(size, "block_size", size) for size in block.block_shape]
    # A squeezed dimension has blocks of one.
    shape = [size if isinstance(size, int) else 1 for size in shape]
    are = math.prod(-(-whole // size) for whole, size in zip(array.shape, shape, strict=True))
    return {"bytes": math.prod(shape) * array.dtype.itemsize, "are": are}


def _full_grid(sizes: Sequence[int | None], outputs: Sequence[int]) -> list[int] | None:
    """The grid with its computed dimension as large as the output's blocks allow; None if that is not clear."""
    fixed = math.prod(size for size in sizes if size is not None)
    if sizes.count(None) == 0:
        return [size for size in sizes if size is not None]
    most = max(outputs, default=0)
    if sizes.count(None) > 1 or not fixed or most % fixed:
        return None
    return [most // fixed if size is None else size for size in sizes]


def _fetched(block: Any, grid: Sequence[int]) -> int | None:
    """How often the block changes from one grid step to the next; None where its index map reads data."""
    import numpy as np

    jax: Any = importlib.import_module("jax")
    if math.prod(grid) > _MOST_POINTS:
        return None
    closed = block.index_map_jaxpr
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    scalars = jaxpr.invars[len(grid) :]
    if any(v in scalars for e in jaxpr.eqns for v in e.invars if not hasattr(v, "val")):
        return None
    points = np.asarray(list(itertools.product(*map(range, grid))), dtype=np.int32)

    def index(*point: Any) -> Any:
        return jax.core.eval_jaxpr(jaxpr, consts, *point, *([0] * len(scalars)))

    try:
        at = jax.vmap(index)(*points.T)
    except (TypeError, ValueError, NotImplementedError):
        return None
    where = np.stack([np.broadcast_to(np.asarray(axis), len(points)) for axis in at], axis=1)
    return 1 + int((where[1:] != where[:-1]).any(axis=1).sum())
