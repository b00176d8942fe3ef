"""The loop over a block: what waits for exponentials is computed some pieces ahead of what needs it.

An exponential and a reciprocal take some thirty bundles one after the other. Where each piece of work
follows its own, the compiler fills the wait with so many other pieces that it runs out of registers.
Here the work ahead stands between that on earlier pieces, a few pieces apart, across the ends of the
loop's steps too: through VMEM, whose loads and stores have slots of their own, which are free.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hloscope_kernels.glu_rows.config import Blocks

# Rows of a piece, with `tile_columns` columns. Registers of bfloat16 hold 8 rows of 256 columns, or 16 of 128, a layout
# that XLA likes around grouped matmuls on tpu7x: a piece of 8 rows would begin in the middle of such a register.
_ROWS = 16
# Pieces that are under way, of which all but one are ahead.
_UNDER_WAY = 4


def buffers(blocks: Blocks) -> list[Any]:
    """Scratch for one float32 number per element of the pieces under way."""
    return [pltpu.VMEM((_ROWS, blocks.tile_columns), jnp.float32)] * _UNDER_WAY


def in_turns(
    mlp: int,
    blocks: Blocks,
    kept: tuple[Any, ...],
    ahead: Callable[[Any, slice, Any], None],
    finish: Callable[[Any, slice, Any], None],
) -> None:
    """Work through a block; the pieces of one tile are written out in a loop step.

    Args:
      mlp: columns.
      blocks: how the block is cut.
      kept: the references of `buffers`.
      ahead: called with rows and columns of a piece, and with where to put what is wanted early of it.
      finish: called with the same later.
    """
    pieces = [
        (row, slice(start, min(start + blocks.tile_columns, mlp)))
        for row in range(0, blocks.tile_rows, _ROWS)
        for start in range(0, mlp, blocks.tile_columns)
    ]
    # A divisor of their number: each tile begins with the same one.
    under_way = next(n for n in (_UNDER_WAY, 2, 1) if len(pieces) % n == 0)
    tiles = blocks.rows // blocks.tile_rows

    def call(work: Callable[[Any, slice, Any], None], tile: Any, number: int) -> None:
        row, columns = pieces[number]
        rows = pl.ds(pl.multiple_of(tile * blocks.tile_rows + row, _ROWS), _ROWS)
        work(rows, columns, kept[number % under_way].at[:, : columns.stop - columns.start])

    def step(tile: Any, carry: Any) -> Any:
        following = jnp.minimum(tile + 1, tiles - 1)  # The first pieces of the last tile are computed twice.
        for number in range(len(pieces)):
            early = number + under_way - 1
            call(ahead, tile if early < len(pieces) else following, early % len(pieces))
            call(finish, tile, number)
        return carry

    for number in range(under_way - 1):
        call(ahead, 0, number)
    lax.fori_loop(0, tiles, step, ())
