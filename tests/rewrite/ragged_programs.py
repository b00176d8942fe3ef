"""Small programs on a ragged buffer, some of which read its dead rows."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import hloscope as hs
from hloscope.rewrite.rows import BITWISE_OPTIONS, RowsAnalysis, find_row_clusters, kernels_as, rewrite_rows

ROWS, COLUMNS, GROUPS, TOKENS = 16, 8, 3, 6
SIZES = np.array([4, 0, 5], np.int32)
Program = Callable[..., Any]


def buffer(seed: int = 0) -> Array:
    """Rows that are all finite: what is dead is told by the sizes alone."""
    return jax.random.normal(jax.random.key(seed), (ROWS, COLUMNS))


def weights(seed: int = 1) -> Array:
    """One matrix per group."""
    return jax.random.normal(jax.random.key(seed), (GROUPS, COLUMNS, COLUMNS))


def swish(x: Array) -> Array:
    """Row-wise work."""
    return x * jax.nn.sigmoid(x)


def step_of(program: Program, *args: Any) -> hs.Step:
    """A step on arrays."""
    return hs.Step(program, args=args)


def analysis(program: Program, *args: Any) -> RowsAnalysis:
    """What is found in a program."""
    return find_row_clusters(step_of(program, *args))


def run(step: hs.Step, *args: Any) -> Any:
    """The results, computed operation by operation."""
    lowered = step.jit().lower(*args)
    return lowered.compile(compiler_options=dict(BITWISE_OPTIONS))(*args)


def plain(program: Program, *args: Any) -> Any:
    """The results of a program as it is."""
    return run(step_of(program, *args), *args)


def poisoned(program: Program, *args: Any) -> Any:
    """The results of the rewritten program, with NaN wherever a kernel may leave a row unwritten."""
    step = step_of(program, *args)
    with kernels_as("poisoned"):
        rewritten = rewrite_rows(step)
    assert rewritten is not step, "nothing was rewritten"
    return run(rewritten, *args)


def same(left: Any, right: Any) -> bool:
    """Whether two trees of arrays are equal bit by bit, but for the kind of NaN."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)


def grouped(x: Array, w: Array, sizes: Array) -> Array:
    """A program whose dead rows are dead: only the grouped matmul reads them."""
    return lax.ragged_dot(swish(x), w, sizes)


def moe_loss(params: dict[str, Array], tokens: Array, index: Array, sizes: Array) -> Array:
    """A layer as in `examples/_moe.py`, on one device."""
    limit = jnp.sum(sizes)
    row = jnp.arange(ROWS)
    index = jnp.where(row < limit, index, TOKENS)
    packed = tokens.at[index].get(mode="fill", fill_value=0)
    gate, up = jnp.split(lax.ragged_dot(packed, params["wi"], sizes), 2, axis=-1)
    out = lax.ragged_dot(jax.nn.silu(gate) * up, params["wo"], sizes)
    weight = params["weight"].at[jnp.where(row < limit, row, ROWS)].get(mode="fill", fill_value=0)
    combined = jnp.zeros_like(tokens).at[index].add(out * weight[:, None], mode="drop")
    return jnp.sum(jnp.square(combined))


def moe_args() -> tuple[Any, ...]:
    """Arguments of `moe_loss`."""
    keys = jax.random.split(jax.random.key(7), 4)
    params = {
        "wi": jax.random.normal(keys[0], (GROUPS, COLUMNS, 2 * COLUMNS)),
        "wo": jax.random.normal(keys[1], (GROUPS, COLUMNS, COLUMNS)),
        "weight": jax.random.normal(keys[2], (ROWS,)),
    }
    tokens = jax.random.normal(keys[3], (TOKENS, COLUMNS))
    return params, tokens, jnp.arange(ROWS, dtype=jnp.int32) % TOKENS, jnp.asarray(SIZES)


def sorted_moe_loss(params: dict[str, Array], tokens: Array, choice: Array, *, filled: int = TOKENS) -> Array:
    """A layer whose rows come from sorted slots, two a token: `filled` is the index of dead rows."""
    order = jnp.argsort(choice)
    sizes = jnp.bincount(choice, length=GROUPS + 1)[:GROUPS].astype(jnp.int32)
    row = jnp.arange(ROWS)
    padded = jnp.pad(order, (0, ROWS - order.shape[0]))
    token = jnp.where(row < jnp.sum(sizes), padded // 2, filled)
    packed = tokens.at[token].get(mode="fill", fill_value=0)
    out = lax.ragged_dot(swish(lax.ragged_dot(packed, params["w"], sizes)), params["w"], sizes)
    return jnp.sum(jnp.square(jnp.zeros_like(tokens).at[token].add(out * 3.0, mode="drop")))
