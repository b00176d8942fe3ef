"""hloscope's times beside those that others measured on TPUs: copies, matmuls, a kernel and collectives, by size.

    python benchmarks/published_measurements.py              # needs jax and libtpu, no TPU; two minutes
    python benchmarks/published_measurements.py tpu7x copy   # rows whose topology and program contain the words

The very programs are compiled for the chip that they ran on, hloscope is asked for the time of the operations that the
source timed, and both stand side by side. `published_measurements.toml` has the times and their sources, and says on
which rows a figure was fitted; all others are a test of it. `published_times.py` has fusions and kernels.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.costs import is_collective
from hloscope.analysis.place import provenance
from hloscope.capture import Topology
from hloscope.devices import chips
from hloscope.hlo import read_hlo
from hloscope.report.kernel import load_kernel

DATA = Path(__file__).with_suffix(".toml")
STEPS = Path(__file__).with_name("published_steps.py")
MARK = "measured"  # the scope of what a source timed
SECONDS = {"us": 1e-6, "ms": 1e-3}
F32, BF16 = jnp.float32, jnp.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a source ran: a function of arrays of these shapes on each device, and what it counts as done, in bytes or
    operations."""

    function: Callable[..., Any]
    operands: tuple[tuple[tuple[int, ...], Any], ...]
    amount: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run, in seconds; timed by the host, what it takes longer than the run before."""

    size: str
    published: float
    estimate: float | None
    fitted: bool


def program_of(source: dict[str, Any], size: Any) -> Program:
    """The program of a row; collectives run over the axes `over` of the source's mesh."""
    axes = tuple(f"d{i}" for i in source.get("over", ()))
    group = int(np.prod([source["mesh"][i] for i in source["over"]])) if axes else 1
    kind = source["program"]
    if kind == "copy":
        return Program(function=jnp.copy, operands=(((size // 2,), BF16),), amount=2 * size)
    if kind == "matmul":
        m, n, k = size if isinstance(size, list) else (size, size, size)

        def matmul(x: Any, y: Any) -> Any:
            return jnp.matmul(x, y, preferred_element_type=F32).astype(BF16)

        return Program(function=matmul, operands=(((m, k), BF16), ((k, n), BF16)), amount=2 * m * n * k)
    if kind == "matmul int8":
        m, n, k = size

        def product(x: Any, y: Any) -> Any:
            return jnp.matmul(x, y, preferred_element_type=jnp.int32)

        return Program(function=product, operands=(((m, k), jnp.int8), ((k, n), jnp.int8)))
    if kind == "permute":
        ring = [(i, (i + 1) % group) for i in range(group)]
        return Program(function=lambda x: jax.lax.ppermute(x, axes[0], ring), operands=(((size // 4,), F32),))
    if kind == "all-gather bytes":  # of the result
        return Program(
            function=lambda x: jax.lax.all_gather(x, axes, tiled=True),
            operands=(((size // group // 2,), BF16),),
        )
    if kind == "all-reduce square":
        return Program(function=lambda x: jax.lax.psum(x, axes), operands=(((size, size), BF16),))
    collectives: dict[str, Callable[[Any], Any]] = {
        "all-gather": lambda x: jax.lax.all_gather(x, axes, tiled=True),
        "all-to-all": lambda x: jax.lax.all_to_all(x, axes, split_axis=0, concat_axis=0, tiled=True),
        "all-reduce": lambda x: jax.lax.psum(x, axes),
    }
    # An all-gather's source counts what both devices of a chip get.
    arrives = 2 * (group - 1) * size * 8 * 128 * 4
    return Program(function=collectives[kind], operands=(((size, 8, 128), F32),), amount=arrives)


def analyses_of(source: dict[str, Any], program: Program) -> Analyses:
    """The program, compiled for the source's topology."""
    topology = Topology(source["topology"])
    sizes = source.get("mesh")
    if sizes is None:
        mesh = Mesh(np.array(topology.devices[:1]), ("x",), axis_types=(AxisType.Auto,))
    else:
        mesh = topology.mesh(**{f"d{i}": n for i, n in enumerate(sizes)})
    whole = PartitionSpec()

    def marked(*operands: Any) -> Any:
        with jax.named_scope(MARK):
            return program.function(*operands)

    function = marked
    if sizes is not None:
        function = jax.shard_map(marked, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    placed = [
        jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, whole))
        for shape, kind in program.operands
    ]
    compiled: Any = jax.jit(function).lower(*placed).compile()
    (module,) = compiled.runtime_executable().hlo_modules()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "module.hlo.pb"
        file.write_bytes(module.as_serialized_hlo_module_proto())
        return Analyses(
            read_hlo(file).module,
            chip=chips()[topology.chip],
            topology=topology.name,
            device_coordinates=topology.coordinates,
            wraps=topology.wraps,
        )


def estimate(source: dict[str, Any], size: Any) -> float | None:
    """Seconds of what the source's clock saw: the kernel, the whole program, the collective, or the marked scope."""
    if source["program"] == "kernel":
        (kernel,) = load_kernel(f"{STEPS}:matmul_{size}_{source['steps']}").kernels
        return kernel.seconds
    analyses = analyses_of(source, program_of(source, size))
    if source["timed"] == "host":
        return analyses.step_time.seconds
    found = [i for c in analyses.module.control_computations for i in c.instructions]
    if "mesh" in source:
        found = [i for i in found if is_collective(i)]
    else:
        # A plain copy keeps no name.
        found = [i for i in found if MARK in provenance(i).op_name or i.opcode == "copy"]
    seconds = [analyses.costs.of(i).seconds for i in found]
    return sum(s or 0.0 for s in seconds) if seconds and None not in seconds else None


def rows_of(source: dict[str, Any]) -> Iterator[Row]:
    """Every run of a source, compiled and estimated."""
    fitted = source.get("fitted_rows", range(len(source["rows"])) if "fitted" in source else ())
    before: Row | None = None
    for position, (size, published) in enumerate(source["rows"]):
        unit = source["unit"]
        if unit in SECONDS:
            seconds = published * SECONDS[unit]
        else:
            seconds = program_of(source, size).amount / published / RATES[unit]
        row = Row(
            size=" x ".join(map(str, size)) if isinstance(size, list) else str(size),
            published=seconds,
            estimate=estimate(source, size),
            fitted=position in fitted,
        )
        if source["timed"] != "host":
            yield row
        elif before is not None and before.published < row.published:
            yield longer(before, row)
        before = row


def longer(before: Row, row: Row) -> Row:
    """What a run takes longer than the one before."""
    known = before.estimate is not None and row.estimate is not None
    return replace(
        row,
        size=f"{before.size} -> {row.size}",
        published=row.published - before.published,
        estimate=(row.estimate or 0.0) - (before.estimate or 0.0) if known else None,
    )


RATES = {"GB/s": 1e9, "TFLOP/s": 1e12}


def main(words: list[str]) -> None:
    """Print every source's rows, and how far off they are in the middle."""
    for source in tomllib.loads(DATA.read_text())["source"]:
        if not all(word in f"{source['topology']} {source['program']}" for word in words):
            continue
        print(f"\n{source['topology']}  {source['name']}; {source['timed']}\n  {source['url']}")
        if "fitted" in source:
            print(f"  fitted on rows with *: {source['fitted']}")
        errors: dict[bool, list[float]] = {True: [], False: []}
        for row in rows_of(source):
            if row.estimate is None:
                print(f"  {row.size:>42} {row.published * 1e6:12.2f} us {'no estimate':>15}")
                continue
            error = row.estimate / row.published - 1
            errors[row.fitted].append(abs(error))
            print(
                f"{'*' if row.fitted else ' ':>3}{row.size:>41} {row.published * 1e6:12.2f} us"
                f" {row.estimate * 1e6:12.2f} us {100 * error:+7.1f} %"
            )
        for was_fitted, found in errors.items():
            if found:
                said = "fitted" if was_fitted else "not fitted"
                print(f"  {said}: median error {100 * median(found):.1f} %, largest {100 * max(found):.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
