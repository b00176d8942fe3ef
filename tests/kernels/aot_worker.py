"""Compiles the row kernels ahead of time for one TPU topology; one JSON line per program.

A process of its own, so that the compiler's library is loaded once and its noise stays out of the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hloscope_kernels import fused_glu, glu_rows, glu_rows_bwd, unsort_bwd_rows, valid_rows
from hloscope_kernels.chip import tpu_chip

BF16, F32 = jnp.bfloat16, jnp.float32
# Rows that end in the middle of a block; wide enough that XLA keeps the buffers in HBM.
ROWS = 65_536 - 100

glu = partial(glu_rows, implementation="pallas_tpu")
glu_bwd = partial(glu_rows_bwd, implementation="pallas_tpu", donate=True)
unsort = partial(unsort_bwd_rows, implementation="pallas_tpu", donate=True)
fused = partial(fused_glu, implementation="pallas_tpu")


def cut(x: jax.Array, end: jax.Array, limit: jax.Array) -> jax.Array:
    """Row numbers against a number that is known when the step runs."""

    def rows(x: jax.Array) -> jax.Array:
        return jnp.where((jnp.arange(ROWS) < end)[:, None], jax.nn.silu(x), 0)

    return valid_rows(rows, limit, implementation="pallas_tpu")(x)


def over_valid_rows(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`valid_rows` with the limit as the last operand."""

    def run(*operands: jax.Array) -> Any:
        return valid_rows(function, operands[-1], implementation="pallas_tpu", **options)(*operands[:-1])

    return run


def rms_norm(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = jnp.mean(jnp.square(x.astype(F32)), axis=1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * np.ones(x.shape[1], BF16), mean


def weigh(x: jax.Array, y: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(F32)
    return (wide * weights[:, None]).astype(x.dtype), jnp.sum(wide * y.astype(F32), axis=1)


def joined(x: jax.Array) -> jax.Array:
    row = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], 1), 0)
    parts = [jnp.tanh(x[:, 5:700]), jnp.pad(jax.nn.gelu(x[:, :300]), ((0, 0), (3, 26)))]
    return jnp.where(row % 2 == 0, jnp.concatenate(parts, axis=1), 0)


def masked(x: jax.Array, weights: jax.Array, alive: jax.Array, last: jax.Array) -> jax.Array:
    wide = jnp.where((alive & ~last)[:, None], x.astype(F32) * weights[:, None], 0.0)
    return wide.astype(x.dtype)


def matrix(rows: int, columns: int, dtype: Any) -> tuple[tuple[int, int], Any]:
    return (rows, columns), dtype


LIMIT = ((), jnp.int32)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any], tuple[int, ...]]] = {
    "glu silu bf16": (glu, [matrix(ROWS, 2048, BF16), LIMIT], ()),
    "glu gelu f32": (partial(glu, activation="gelu"), [matrix(ROWS, 2048, F32), LIMIT], ()),
    "glu odd": (glu, [matrix(1000, 200, BF16), LIMIT], ()),
    "glu wide": (glu, [matrix(4096, 36_864, BF16), LIMIT], ()),
    "glu_bwd silu bf16": (glu_bwd, [matrix(ROWS, 2048, BF16), matrix(ROWS, 1024, BF16), LIMIT], (0,)),
    "glu_bwd gelu f32": (
        partial(glu_bwd, activation="gelu"),
        [matrix(ROWS, 2048, F32), matrix(ROWS, 1024, F32), LIMIT],
        (0,),
    ),
    "glu_bwd odd": (glu_bwd, [matrix(1000, 200, BF16), matrix(1000, 100, BF16), LIMIT], (0,)),
    "unsort bf16": (unsort, [matrix(ROWS, 4096, BF16)] * 2 + [((ROWS,), F32), LIMIT], (0,)),
    "unsort f32": (unsort, [matrix(ROWS, 2048, F32)] * 2 + [((ROWS,), F32), LIMIT], (0,)),
    "unsort odd": (unsort, [matrix(1000, 200, BF16)] * 2 + [((1000,), BF16), LIMIT], (0,)),
    "fused_glu": (
        lambda x, limit: jax.grad(lambda x: jnp.sum(fused(x, limit).astype(F32)))(x * 2),
        [matrix(ROWS, 2048, BF16), LIMIT],
        (),
    ),
    "rows norm": (over_valid_rows(rms_norm), [matrix(ROWS, 2048, BF16), LIMIT], ()),
    "rows weigh": (
        over_valid_rows(weigh, donate={0: 0}),
        [matrix(ROWS, 4096, BF16)] * 2 + [((ROWS,), F32), LIMIT],
        (0,),
    ),
    "rows joined": (over_valid_rows(joined), [matrix(ROWS, 1024, F32), LIMIT], ()),
    "rows softmax": (over_valid_rows(jax.nn.softmax), [matrix(ROWS, 1024, F32), LIMIT], ()),
    "rows vectors": (
        over_valid_rows(lambda v, w: v * w + 1),
        [((ROWS,), F32), ((ROWS,), F32), LIMIT],
        (),
    ),
    "rows masked": (
        over_valid_rows(masked, donate={0: 0}),
        [matrix(ROWS, 4096, BF16), ((ROWS,), F32), ((ROWS,), jnp.bool_), ((ROWS,), jnp.bool_), LIMIT],
        (0,),
    ),
    "rows cut": (cut, [matrix(ROWS, 4096, BF16), LIMIT, LIMIT], ()),
    "vmap one limit": (jax.vmap(fused, (0, None)), [((2, 4096, 2048), BF16), LIMIT], ()),
    "vmap": (jax.vmap(fused), [((2, 4096, 2048), BF16), ((2,), jnp.int32)], ()),
}


def shard_mapped(mesh: Mesh) -> Callable[..., Any]:
    """Gradient per device, each with its own limit, with jax's check of what varies over the mesh."""
    rows = PartitionSpec("expert")

    def per_device(buffer: jax.Array, limits: jax.Array) -> jax.Array:
        def loss(buffer: jax.Array) -> jax.Array:
            return jnp.sum(jax.checkpoint(fused)(buffer, limits[0]).astype(F32))

        return jax.grad(loss)(buffer * 2)

    return jax.shard_map(per_device, mesh=mesh, in_specs=(rows, rows), out_specs=rows, check_vma=True)


def compile_one(mesh: Mesh, spec: PartitionSpec, program: Any, shapes: Any, donated: Any) -> dict[str, Any]:
    sharding = NamedSharding(mesh, spec)
    whole = NamedSharding(mesh, PartitionSpec())
    operands = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=sharding if shape else whole) for shape, dtype in shapes
    ]
    compiled = jax.jit(program, donate_argnums=donated).lower(*operands).compile()
    memory = compiled.memory_analysis()
    return {"hlo": compiled.as_text(), "temp": memory.temp_size_in_bytes, "alias": memory.alias_size_in_bytes}


def main(topology: str, names: list[str]) -> None:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    one = Mesh(np.array(devices[:1]), ("expert",), axis_types=(AxisType.Auto,))
    two = Mesh(np.array(devices[:2]), ("expert",), axis_types=(AxisType.Auto,))
    for name in names or [*PROGRAMS, "shard_map"]:
        mesh = two if name == "shard_map" else one
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            if name == "shard_map":
                shapes = [matrix(2 * 65_536, 2048, BF16), ((2,), jnp.int32)]
                answer = compile_one(mesh, PartitionSpec("expert"), shard_mapped(two), shapes, ())
            else:
                answer = compile_one(mesh, PartitionSpec(), *PROGRAMS[name])
            answer |= {"name": name, "vmem_bytes": tpu_chip().vmem_bytes}
        print("PROGRAM " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
