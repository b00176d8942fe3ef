"""The grid that all row kernels share: it visits only the blocks of rows below `limit`.

Rows [0, limit) of a buffer are valid. The grid's row dimension is as long as there are blocks with a
valid row (one at least), so that rows past the last such block are neither read nor written. On a
chip whose two cores run one program, each core takes one contiguous half of these blocks; where
their number is odd, the second core stays on its last block for one step more and does nothing.

Grid: (cores, blocks per core, column blocks). Only the first dimension is `parallel`: sums over
column blocks accumulate in an output window, which is right only where that dimension runs in order
on one core.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

# Where each number lies in the prefetched schedule.
_LIMIT, _LIVE_BLOCKS, _BLOCKS_PER_CORE = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGrid:
    """How rows are cut into blocks and given to cores.

    Attributes:
      rows: rows of the buffer.
      block_rows: rows of a block.
      column_blocks: blocks that a row is cut into.
      cores: cores that share the blocks.
    """

    rows: int
    block_rows: int
    column_blocks: int = 1
    cores: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of rows in the whole buffer."""
        return pl.cdiv(self.rows, self.block_rows)

    @property
    def workers(self) -> int:
        """Cores that get work: a buffer of one block cannot be shared."""
        return min(self.cores, self.blocks)

    def schedule(self, limit: jax.Array) -> jax.Array:
        """int32[3] for the scalar prefetch: limit, blocks with a valid row, blocks per core."""
        limit = jnp.clip(limit.astype(jnp.int32), 0, self.rows)
        live = jnp.maximum(pl.cdiv(limit, self.block_rows), self.workers).astype(jnp.int32)
        per_core = pl.cdiv(live, self.workers).astype(jnp.int32)
        return jnp.stack([limit, live, per_core])

    def grid(self, schedule: jax.Array) -> tuple[int | jax.Array, ...]:
        """The grid: its second dimension is known only when the program runs."""
        return (self.workers, schedule[_BLOCKS_PER_CORE], self.column_blocks)

    @property
    def dimension_semantics(self) -> tuple[Literal["parallel"], Literal["arbitrary"], Literal["arbitrary"]]:
        """`parallel` over cores, in order for the rest."""
        return ("parallel", "arbitrary", "arbitrary")

    def block_index(self, core: Any, step: Any, column: Any, schedule: Any) -> tuple[Any, Any]:
        """(row block, column block) of a grid step, for index maps.

        A step past the live blocks stays on the last one, with its last columns: nothing is fetched
        or written for it.
        """
        if self.workers == 1:
            return step, column
        block = core * schedule[_BLOCKS_PER_CORE] + step
        idle = block >= schedule[_LIVE_BLOCKS]
        return (
            jnp.where(idle, schedule[_LIVE_BLOCKS] - 1, block),
            jnp.where(idle, self.column_blocks - 1, column),
        )

    def visit(self, schedule: Any, body: Any) -> None:
        """Run `body(first_row, valid_rows)` in a kernel, unless the step is idle.

        `first_row` is the first row of the block, `valid_rows` how many rows from there on are below
        the limit: block_rows or more except in the last live block.
        """
        block = pl.program_id(0) * schedule[_BLOCKS_PER_CORE] + pl.program_id(1)
        first_row = block * self.block_rows
        valid_rows = schedule[_LIMIT] - first_row
        if self.workers == 1:
            body(first_row, valid_rows)
        else:
            pl.when(block < schedule[_LIVE_BLOCKS])(lambda: body(first_row, valid_rows))


def zero_tail(out: Any, valid_rows: Any, tile_rows: int) -> None:
    """Zero the rows of a block of `out` from `valid_rows` on: only limit's own block has such rows.

    A select, never a multiply: what lies in dead rows may be NaN.
    """
    block_rows = out.shape[0]

    @pl.when(valid_rows < block_rows)
    def _() -> None:
        def tile(index: Any, carry: Any) -> Any:
            first = pl.multiple_of(index * tile_rows, tile_rows)
            row = first + lax.broadcasted_iota(jnp.int32, (tile_rows, out.shape[1]), 0)
            kept = out[pl.ds(first, tile_rows), :]
            if kept.dtype == jnp.bfloat16:
                kept = kept.astype(jnp.float32)
            kept = jnp.where(row < valid_rows, kept, jnp.zeros_like(kept))
            out[pl.ds(first, tile_rows), :] = kept.astype(out.dtype)
            return carry

        first_tile = jnp.maximum(valid_rows, 0) // tile_rows
        lax.fori_loop(first_tile, block_rows // tile_rows, tile, ())
