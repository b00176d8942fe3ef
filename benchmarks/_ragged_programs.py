"""The grouped matmuls as programs for the static worker: XLA's, and the Pallas kernels at tiles of choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from hloscope_kernels.chip import Chip
from hloscope_kernels.ragged_dot import pallas_tpu, xla
from hloscope_kernels.ragged_dot.shapes import REAL_SHAPES
from hloscope_kernels.ragged_dot.tiles import ElementBytes, Tiles, contraction_tiles, dot_tiles

SHAPES = {shape.name: shape for shape in REAL_SHAPES}
DTYPE = jnp.dtype("bfloat16")
_BYTES = ElementBytes(lhs=2, rhs=2, out=2)


def operands(case: dict[str, Any]) -> list[tuple[tuple[int, ...], Any]]:
    """Shapes and dtypes of lhs, rhs and the bounds."""
    shape = SHAPES[case["shape"]]
    rows, grads = ((shape.m, shape.k), DTYPE), ((shape.m, shape.n), DTYPE)
    weights = ((shape.groups, shape.k, shape.n), DTYPE)
    pair = {"dot": [rows, weights], "transposed": [grads, weights], "contraction": [rows, grads]}
    return [*pair[case["operation"]], ((shape.groups + 1,), jnp.int32)]


def program(case: dict[str, Any], chip: Chip) -> tuple[Callable[..., Any], dict[str, int] | None]:
    """The product of a case, and the tiles that it runs with (None: XLA's own)."""
    operation, how = case["operation"], {"out_dtype": DTYPE}
    if case["by"] == "xla":
        if operation == "contraction":
            return partial(xla.contraction, offset=False, **how), None
        return partial(xla.dot, transposed=operation == "transposed", **how), None
    tiles = replace(chosen_tiles(case, chip), **(case["blocks"] or {}))
    if operation == "contraction":
        return partial(pallas_tpu.contraction, tiles=tiles, **how), asdict(tiles)
    return partial(pallas_tpu.dot, transposed=operation == "transposed", tiles=tiles, **how), asdict(tiles)


def chosen_tiles(case: dict[str, Any], chip: Chip) -> Tiles:
    """The tiles that the kernel takes by itself."""
    shape = SHAPES[case["shape"]]
    if case["operation"] == "contraction":
        return contraction_tiles(chip, _BYTES, m=shape.m, p=shape.k, q=shape.n)
    k, n = (shape.n, shape.k) if case["operation"] == "transposed" else (shape.k, shape.n)
    return dot_tiles(
        chip, _BYTES, m=shape.m, k=k, n=n, groups=shape.groups, transposed=case["operation"] == "transposed"
    )
