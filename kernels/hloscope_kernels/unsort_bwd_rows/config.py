"""Block sizes of `unsort_bwd_rows`: data, found by the search of `benchmarks/kernels_static.py --search`."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import LANES

# Rows of a block where the buffer has as many: one (8, 128) register of per-row numbers.
_ROWS = 8 * LANES
_MOST_COLUMNS = 1024
_TILE_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How a buffer is cut.

    Attributes:
      rows: rows of a block, a multiple of 128.
      columns: columns of a block, a multiple of 128; the last block of a row may be partial.
      tile_rows: rows that one step of the inner loop computes, 128 columns at a time.
    """

    rows: int
    columns: int
    tile_rows: int


def blocks_for(rows: int, hidden: int, itemsize: int, chip: Chip) -> Blocks:
    """Blocks for buffers [rows, hidden]: as few of equal width as two windows of all three allow."""
    block_rows = min(_ROWS, -(-rows // LANES) * LANES)
    room = chip.window_bytes // (2 * 3 * block_rows * itemsize)
    most = max(LANES, min(_MOST_COLUMNS, room // LANES * LANES))
    count = -(-hidden // most)
    return Blocks(rows=block_rows, columns=-(-hidden // (count * LANES)) * LANES, tile_rows=_TILE_ROWS)
