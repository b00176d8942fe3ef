"""Times every implementation of the grouped matmuls on the device at hand, at the named real shapes.

    python -m hloscope_kernels.ragged_dot.benchmark

Prints one line per shape, operation and implementation: milliseconds (the median of several runs), the ratio to
XLA's, and the achieved share of the useful work, or why the implementation cannot run. What it prints on a device
that `regions.toml` does not know, or knows only by `static` comparison, is what a measured region should say.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp

from hloscope_kernels.ragged_dot.choose import IMPLEMENTATIONS, Operation, Problem, device_kind, unsupported
from hloscope_kernels.ragged_dot.gradients import How, contraction, dot
from hloscope_kernels.ragged_dot.shapes import REAL_SHAPES, Shape

OPERATIONS: tuple[Operation, ...] = ("dot", "transposed", "contraction")
DTYPE = "bfloat16"


def uneven_sizes(shape: Shape, seed: int = 0) -> list[int]:
    """Sizes that add up to the valid rows, as uneven as tokens thrown at random at experts of uneven appeal."""
    appeal = jax.random.gamma(jax.random.key(seed), 4.0, (shape.groups,))
    ends = jnp.round(jnp.cumsum(appeal) / jnp.sum(appeal) * shape.valid_rows).astype(jnp.int32)
    return [int(size) for size in jnp.diff(ends, prepend=0)]


def problem_of(shape: Shape, operation: Operation) -> Problem:
    """The problem of one operation at a shape: the result's, or that of one of its gradients."""
    k, n = (shape.n, shape.k) if operation == "transposed" else (shape.k, shape.n)
    return Problem(
        operation=operation, m=shape.m, k=k, n=n, groups=shape.groups, dtypes=(DTYPE, DTYPE, DTYPE)
    )


def program(operation: Operation, implementation: str) -> Callable[..., jax.Array]:
    """A compiled product that takes lhs, rhs and bounds."""
    how = How(implementation=implementation, precision=None, interpret=False, offset=False)
    if operation == "contraction":
        return jax.jit(partial(_contraction, how=how))
    return jax.jit(partial(_dot, transposed=operation == "transposed", how=how))


def operands(shape: Shape, operation: Operation) -> tuple[jax.Array, jax.Array, jax.Array]:
    """lhs, rhs and bounds of an operation, on the device."""
    keys = jax.random.split(jax.random.key(1), 3)
    rows = jax.random.normal(keys[0], (shape.m, shape.k), DTYPE)
    grads = jax.random.normal(keys[1], (shape.m, shape.n), DTYPE)
    weights = jax.random.normal(keys[2], (shape.groups, shape.k, shape.n), DTYPE)
    bounds = jnp.cumsum(jnp.array([0, *uneven_sizes(shape)]), dtype=jnp.int32)
    pairs = {"dot": (rows, weights), "transposed": (grads, weights), "contraction": (rows, grads)}
    return *pairs[operation], bounds


def median_seconds(call: Callable[[], jax.Array], runs: int = 10) -> float:
    """The median time of a call in seconds, after one that compiles."""
    call().block_until_ready()
    taken: list[float] = []
    for _ in range(runs):
        start = time.perf_counter()
        call().block_until_ready()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def lines() -> Iterator[str]:
    """The table, a line at a time as it is measured."""
    yield f"{device_kind()}, {DTYPE}"
    for shape in REAL_SHAPES:
        for operation in OPERATIONS:
            given, xla_seconds = operands(shape, operation), None
            for implementation in IMPLEMENTATIONS[1:]:
                head = f"{shape.name:18} {operation:12} {implementation:11}"
                reason = unsupported(implementation, problem_of(shape, operation), device_kind())
                if reason is not None:
                    yield f"{head} cannot run: {reason}"
                    continue
                seconds = median_seconds(partial(program(operation, implementation), *given))
                xla_seconds = xla_seconds or seconds
                useful = 2 * shape.valid_rows * shape.k * shape.n / seconds / 1e12
                yield f"{head} {seconds * 1e3:9.3f} ms {xla_seconds / seconds:6.2f}x of XLA {useful:7.1f} TFLOP/s"


def _dot(lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, *, transposed: bool, how: How) -> jax.Array:
    return dot(lhs, rhs, bounds, transposed, jnp.dtype(DTYPE), how)


def _contraction(lhs: jax.Array, rhs: jax.Array, bounds: jax.Array, *, how: How) -> jax.Array:
    return contraction(lhs, rhs, bounds, jnp.dtype(DTYPE), how)


def main() -> None:
    """Print the table."""
    if jax.default_backend() == "cpu":
        print("no TPU or GPU here: XLA's on the CPU multiplies every group densely, which says nothing")
        return
    for line in lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
