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
import numpy as np
from jax import lax
from jax.experimental import pallas as pl


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

    def prefetched(self, limit: jax.Array) -> jax.Array:
        """int32[1] for the scalar prefetch: the limit, from which a kernel derives all that it needs."""
        return limit.astype(jnp.int32).reshape(1)

    def grid(self, limit: jax.Array) -> tuple[int | jax.Array, ...]:
        """The grid: its second dimension, blocks per core, is known only when the program runs.

        The blocks that begin below the limit are counted, not divided out: XLA makes one fusion of the
        count, while each constant of arithmetic on scalars is a buffer of the whole program.
        """
        first_rows = self.block_rows * self.workers * lax.iota(jnp.int32, pl.cdiv(self.blocks, self.workers))
        visited = (first_rows < limit.astype(jnp.int32)) | (first_rows == 0)
        return (self.workers, jnp.sum(visited, dtype=jnp.int32), self.column_blocks)

    @property
    def dimension_semantics(self) -> tuple[Literal["parallel"], Literal["arbitrary"], Literal["arbitrary"]]:
        """`parallel` over cores, in order for the rest."""
        return ("parallel", "arbitrary", "arbitrary")

    def block_index(self, core: Any, step: Any, column: Any, prefetched: Any) -> tuple[Any, Any]:
        """(row block, column block) of a grid step, for index maps.

        A step past the live blocks stays on the last one, with its last columns: nothing is fetched
        or written for it.
        """
        if self.workers == 1:
            return step, column
        live, per_core = self._live(prefetched)
        block = core * per_core + step
        idle = block >= live
        return jnp.where(idle, live - 1, block), jnp.where(idle, self.column_blocks - 1, column)

    def visit(self, prefetched: Any, body: Any) -> None:
        """Run `body(first_row, valid_rows)` in a kernel, unless the step is idle.

        `first_row` is the first row of the block, `valid_rows` how many rows from there on are below
        the limit: block_rows or more except in the last live block.
        """
        step, limit = pl.program_id(1), self._limit(prefetched)
        if self.workers == 1:
            body(step * self.block_rows, limit - step * self.block_rows)
            return
        live, per_core = self._live(prefetched)
        block = pl.program_id(0) * per_core + step
        first_row = block * self.block_rows
        pl.when(block < live)(lambda: body(first_row, limit - first_row))

    def _limit(self, prefetched: Any) -> Any:
        return jnp.clip(prefetched[0], 0, self.rows)

    def _live(self, prefetched: Any) -> tuple[Any, Any]:
        """Blocks with a valid row, one per core at least, and how many of them each core takes."""
        # Python's numbers are int64 to lax.div where jax has such.
        block_rows, workers = np.int32(self.block_rows), np.int32(self.workers)
        live = jnp.maximum(lax.div(self._limit(prefetched) + (block_rows - 1), block_rows), workers)
        return live, lax.div(live + (workers - 1), workers)


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
