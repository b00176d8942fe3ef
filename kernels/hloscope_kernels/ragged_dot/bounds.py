"""Which rows belong to which group, in the one form that every implementation takes.

`bounds` is int32 `[g_local + 1]`: rows `[bounds[i], bounds[i + 1])` meet group `i` of the weights held here.
It never falls and stays within `[0, m]`, so offsets, sizes that do not fill the rows and empty groups are
settled here once.
"""

# jax's own signatures leave the types of devices and shardings open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Sizes = jax.Array | np.ndarray | Sequence[int]
Offset = jax.Array | np.ndarray | int | None


def row_bounds(group_sizes: Sizes, group_offset: Offset, *, local_groups: int, rows: int) -> jax.Array:
    """The row bounds of the groups `[group_offset, group_offset + local_groups)`: int32 `[local_groups + 1]`.

    Sizes known on the host are checked (`ValueError`). Sizes on a device cannot be: a negative size counts as
    empty, rows past the last one do not exist, and groups outside `[0, g)` are empty.
    """
    _check_host_sizes(group_sizes, group_offset, local_groups, rows)
    sizes = jnp.maximum(jnp.asarray(group_sizes, jnp.int32), 0)
    edges = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes, dtype=jnp.int32)])
    edges = jnp.minimum(edges, rows)
    if group_offset is None:
        return edges[: local_groups + 1]
    wanted = jnp.reshape(jnp.asarray(group_offset, jnp.int32), ()) + jnp.arange(local_groups + 1)
    return edges[jnp.clip(wanted, 0, sizes.shape[0])]


def in_groups(bounds: jax.Array, rows: int) -> jax.Array:
    """Which rows lie in a group that is held here: bool `[rows, 1]`, to select with."""
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    return (row >= bounds[0]) & (row < bounds[-1])


def _check_host_sizes(group_sizes: Sizes, group_offset: Offset, local_groups: int, rows: int) -> None:
    count = np.shape(group_sizes)[0]
    if group_offset is None and count != local_groups:
        raise ValueError(
            f"ragged_dot: {count} group sizes for {local_groups} groups of rhs; give group_offset when rhs holds "
            "only some of the groups"
        )
    if isinstance(group_offset, (int, np.ndarray)):
        first = int(np.reshape(group_offset, ()))
        if not 0 <= first <= count - local_groups:
            raise ValueError(
                f"ragged_dot: group_offset {first} with {local_groups} groups of rhs does not lie within the "
                f"{count} groups of group_sizes"
            )
    if isinstance(group_sizes, jax.Array):
        return
    sizes = np.asarray(group_sizes)
    if sizes.size and sizes.min() < 0:
        raise ValueError(f"ragged_dot: group_sizes has a negative size: {sizes.min()}")
    if sizes.sum() > rows:
        raise ValueError(f"ragged_dot: group_sizes add up to {sizes.sum()}, lhs has only {rows} rows")


class Visits(NamedTuple):
    """The steps of a kernel over the row tiles, in row order.

    A tile that several groups share is visited once for each. What follows the last visit repeats it and does
    no work, so that the number of steps is known when the kernel is built.

    Attributes:
      group: int32 `[steps]`, the group of each step.
      tile: int32 `[steps]`, its row tile.
      real: int32 scalar, how many steps there really are.
    """

    group: jax.Array
    tile: jax.Array
    real: jax.Array


def visits(edges: jax.Array, *, tile_rows: int, steps: int, visit_empty: bool) -> Visits:
    """The visits of the groups between `edges` (int32 `[groups + 1]`) to row tiles of `tile_rows` rows.

    `steps` must be at least the number of tiles from the first edge to the last, plus `groups - 1`. With
    `visit_empty` an empty group gets one visit, to the tile before it.
    """
    start, end = edges[:-1], edges[1:]
    empty = start >= end
    first = jnp.where(empty, jnp.maximum(start - 1, 0), start) // tile_rows
    last = jnp.where(empty, first - (0 if visit_empty else 1), (end - 1) // tile_rows)
    seen = jnp.cumsum(last - first + 1, dtype=jnp.int32)
    # One masked sum per array: gathers from such small arrays become loops on a TPU.
    step = jnp.minimum(jnp.arange(steps, dtype=jnp.int32), seen[-1] - 1)[:, None]
    here = (step < seen) & (step >= jnp.concatenate([jnp.zeros(1, jnp.int32), seen[:-1]]))
    group = jnp.sum(jnp.where(here, jnp.arange(start.shape[0], dtype=jnp.int32), 0), axis=1)
    tile = jnp.sum(jnp.where(here, last - seen + 1 + step, 0), axis=1)
    return Visits(group=group, tile=tile, real=seen[-1])
