"""Compiles row kernels and XLA's versions of them for one TPU and says which dump belongs to which.

Run by `_static.py`, in a process of its own per target: `_static_worker.py TARGET FOLDER < cases`.
A case is a JSON object on one line: `operation`; `by`, "xla", "kernel" or, for row kernels, "valid_rows"; `blocks`,
null or the fields of the kernel's Blocks or Tiles; `shape`, of a grouped matmul, its name. For each the worker prints
one line with its dump files and its HLO text.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import _ragged_programs as ragged
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloscope_kernels import valid_rows
from hloscope_kernels.chip import Chip, tpu_chip
from hloscope_kernels.glu_rows.shapes import QWEN35_397B as GLU
from hloscope_kernels.unsort_bwd_rows.shapes import QWEN35_397B as UNSORT
from hloscope_kernels.valid_rows.config import blocks_for
from hloscope_kernels.valid_rows.pallas_tpu import row_bytes, vector_count
from hloscope_kernels.valid_rows.program import read_program

ROWS, MLP, HIDDEN = GLU.rows, GLU.mlp, UNSORT.hidden


def shapes(operation: str) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and dtypes of an operation's operands, the limit last."""
    wide = ((ROWS, HIDDEN), jnp.bfloat16)
    fused, half = ((ROWS, 2 * MLP), jnp.bfloat16), ((ROWS, MLP), jnp.bfloat16)
    limit = ((), jnp.int32)
    return {
        "glu_rows": [fused, limit],
        "glu_rows_bwd": [fused, half, limit],
        "unsort_bwd_rows": [wide, wide, ((ROWS,), jnp.float32), limit],
    }[operation]


def by_xla(operation: str) -> Callable[..., Any]:
    """What a training step says without kernels, over the full buffer."""

    def glu(fused: jax.Array) -> jax.Array:
        gate, up = jnp.split(fused, 2, axis=1)
        return jax.nn.silu(gate) * up

    def glu_bwd(fused: jax.Array, gradient: jax.Array, limit: jax.Array) -> jax.Array:
        return jax.vjp(glu, fused)[1](gradient)[0]

    def unsort_bwd(gradient: jax.Array, y: jax.Array, weights: jax.Array, limit: jax.Array) -> Any:
        def forward(y: jax.Array, weights: jax.Array) -> jax.Array:
            return (y.astype(jnp.float32) * weights[:, None]).astype(y.dtype)

        return jax.vjp(forward, y, weights)[1](gradient)

    def forward(fused: jax.Array, limit: jax.Array) -> jax.Array:
        return glu(fused)

    return {"glu_rows": forward, "glu_rows_bwd": glu_bwd, "unsort_bwd_rows": unsort_bwd}[operation]


def by_kernel(operation: str, blocks: dict[str, int] | None, chip: Chip) -> tuple[Callable[..., Any], Any]:
    """The kernel, and the blocks that it runs with."""
    folder = "glu_rows" if operation.startswith("glu") else operation
    config = importlib.import_module(f"hloscope_kernels.{folder}.config")
    kernels = importlib.import_module(f"hloscope_kernels.{folder}.pallas_tpu")
    chosen = {
        "glu_rows": lambda: config.forward_blocks(ROWS, MLP, 2, chip),
        "glu_rows_bwd": lambda: config.backward_blocks(ROWS, MLP, 2, chip),
        "unsort_bwd_rows": lambda: config.blocks_for(ROWS, HIDDEN, 2, chip),
    }
    used = chosen[operation]() if blocks is None else config.Blocks(**blocks)
    kernel = getattr(kernels, f"{operation}_kernel")
    more = {} if operation == "unsort_bwd_rows" else {"activation": "silu"}
    return partial(kernel, blocks=used, chip=chip, **more), used


def by_valid_rows(operation: str) -> Callable[..., Any]:
    """The kernel that `valid_rows` makes of what the training step says."""
    plain = by_xla(operation)

    def over_valid_rows(*operands_and_limit: jax.Array) -> Any:
        *operands, limit = operands_and_limit
        rows = valid_rows(
            lambda *operands: plain(*operands, limit), limit, implementation="pallas_tpu", name=operation
        )
        return rows(*operands)

    return over_valid_rows


def valid_rows_blocks(operation: str, chip: Chip) -> Any:
    """The blocks that `valid_rows` chooses."""
    *operands, _ = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes(operation)]
    plain = by_xla(operation)
    program, _ = read_program(lambda *operands: plain(*operands, jnp.int32(0)), operands)
    return blocks_for(ROWS, row_bytes(program), vector_count(program), len(program.operations), chip)


def program(case: dict[str, Any], chip: Chip) -> tuple[Callable[..., Any], Any, Any]:
    """The function of a case, the blocks that it runs with (None: XLA's own), and its operands."""
    operation = case["operation"]
    if "shape" in case:
        return *ragged.program(case, chip), ragged.operands(case)
    given = shapes(operation)
    if case["by"] == "xla":
        return by_xla(operation), None, given
    if case["by"] == "valid_rows":
        return by_valid_rows(operation), asdict(valid_rows_blocks(operation, chip)), given
    function, used = by_kernel(operation, case["blocks"], chip)
    return function, asdict(used), given


def is_program(name: str, *, grouped: bool) -> bool:
    """Whether a listing is an instruction's; of a grouped matmul only the matmul's, not what XLA has around it."""
    if "<" in name or "TLP" in name:
        return False
    return not grouped or ("ragged" in name and "metadata" not in name)


def main(target: str, folder: Path) -> None:
    """Compile every case of standard input."""
    devices = topologies.get_topology_desc(platform="tpu", topology_name=target).devices
    mesh = Mesh(np.array(devices[:1]), ("x",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        chip = tpu_chip()
        for line in sys.stdin:
            case = json.loads(line)
            before = set(folder.glob("*-final_bundles.txt"))
            function, used, given = program(case, chip)
            operands = [jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for shape, dtype in given]
            answer = dict(case, used=used, window_bytes=chip.window_bytes, error=None, files=[], hlo="")
            try:
                answer["hlo"] = jax.jit(function, keep_unused=True).lower(*operands).compile().as_text()
            except (jax.errors.JaxRuntimeError, ValueError) as error:
                answer["error"] = str(error).splitlines()[0]
            new = sorted(set(folder.glob("*-02-final_bundles.txt")) - before)
            answer["files"] = [str(file) for file in new if is_program(file.name, grouped="shape" in case)]
            print("CASE " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
