"""Programs whose times are published: on a v6e XLA's over the full buffer and the kernels over the valid rows,
on a v5e a matmul as a kernel with small and with large blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import hloscope as hs
from hloscope_kernels import glu_rows, glu_rows_bwd, unsort_bwd_rows

ROWS, VALID, MLP, HIDDEN = 225_280, 126_156, 1_024, 4_096
WIDE = jax.ShapeDtypeStruct((ROWS, HIDDEN), jnp.bfloat16)
FUSED = jax.ShapeDtypeStruct((ROWS, 2 * MLP), jnp.bfloat16)
HALF = jax.ShapeDtypeStruct((ROWS, MLP), jnp.bfloat16)
WEIGHTS = jax.ShapeDtypeStruct((ROWS,), jnp.float32)
LIMIT = jax.ShapeDtypeStruct((), jnp.int32)


def _pullback(function: Callable[..., Any], *operands: jax.Array) -> Callable[..., Any]:
    return getattr(jax, "vjp")(function, *operands)[1]  # noqa: B009  # typed in part only


def glu(fused: jax.Array) -> jax.Array:
    """SiLU of one half of the columns times the other."""
    gate, up = jnp.split(fused, 2, axis=1)
    return jax.nn.silu(gate) * up


def glu_bwd(fused: jax.Array, gradient: jax.Array) -> jax.Array:
    """Its gradient, both halves."""
    return _pullback(glu, fused)(gradient)[0]


def unsort_bwd(gradient: jax.Array, y: jax.Array, weights: jax.Array) -> Any:
    """The gradient of weighting rows: of the rows, and a dot for each row."""

    def forward(y: jax.Array, weights: jax.Array) -> jax.Array:
        return (y.astype(jnp.float32) * weights[:, None]).astype(y.dtype)

    return _pullback(forward, y, weights)(gradient)


XLA: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "unsort": (unsort_bwd, (WIDE, WIDE, WEIGHTS)),
    "forward": (glu, (FUSED,)),
    "backward": (glu_bwd, (FUSED, HALF)),
}


def _whole(name: str) -> hs.Step:
    function, operands = XLA[name]
    return hs.Step(function, args=operands)


def _kernel(function: Any, *operands: Any) -> hs.Step:
    on_tpu = partial(function, implementation="pallas_tpu")
    return hs.Step(on_tpu, args=(*operands, LIMIT), valid_fraction=VALID / ROWS)


@hs.step(topology="v6e:2x2")
def unsort_xla(topology: hs.Topology) -> hs.Step:
    """4.71 ms."""
    return _whole("unsort")


@hs.step(topology="v6e:2x2")
def forward_xla(topology: hs.Topology) -> hs.Step:
    """1.08 ms."""
    return _whole("forward")


@hs.step(topology="v6e:2x2")
def backward_xla(topology: hs.Topology) -> hs.Step:
    """1.92 ms."""
    return _whole("backward")


@hs.step(topology="v6e:2x2")
def unsort_kernel(topology: hs.Topology) -> hs.Step:
    """2.61 ms."""
    return _kernel(unsort_bwd_rows, WIDE, WIDE, WEIGHTS)


@hs.step(topology="v6e:2x2")
def forward_kernel(topology: hs.Topology) -> hs.Step:
    """0.61 ms."""
    return _kernel(glu_rows, FUSED)


@hs.step(topology="v6e:2x2")
def backward_kernel(topology: hs.Topology) -> hs.Step:
    """1.02 ms."""
    return _kernel(glu_rows_bwd, FUSED, HALF)


def _products(x: Any, y: Any, out: Any, total: Any) -> None:
    """One block of the contracted dimension, which is the last of the grid."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _() -> None:
        out[...] = total[...].astype(out.dtype)


def _matmul(n: int, rows: int, contracted: int, columns: int) -> hs.Step:
    """A product of n x n matrices of bfloat16 in blocks of these sizes."""
    square = jax.ShapeDtypeStruct((n, n), jnp.bfloat16)
    call = pl.pallas_call(
        _products,
        out_shape=square,
        grid=(n // rows, n // columns, n // contracted),
        in_specs=[
            pl.BlockSpec((rows, contracted), lambda i, j, k: (i, k)),
            pl.BlockSpec((contracted, columns), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )
    return hs.Step(call, args=(square, square))


def _matmul_step(n: int, size: str) -> Any:
    def build(topology: hs.Topology) -> hs.Step:
        return _matmul(n, *MATMUL_BLOCKS[size])

    build.__name__ = build.__qualname__ = f"matmul_{n}_{size}"
    return hs.step(topology="v5e:2x2")(build)


# Rows, contracted dimension and columns of a block.
MATMUL_BLOCKS = {"small": (128, 128, 128), "large": (512, 1024, 1024)}
globals().update(
    {f"matmul_{n}_{size}": _matmul_step(n, size) for n in (1024, 4096, 8192) for size in MATMUL_BLOCKS}
)
