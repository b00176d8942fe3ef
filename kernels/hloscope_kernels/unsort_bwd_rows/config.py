"""Block sizes of `unsort_bwd_rows`: `blocks.toml`, found by `benchmarks/kernels_static.py --search --write`.

A chip or dtype that was not searched takes what its nearest neighbour has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import LANES
from hloscope_kernels.searched import nearest

TABLE = Path(__file__).with_name("blocks.toml")


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


def row_bytes(columns: int, itemsize: int) -> int:
    """VMEM that one row takes: two windows of both operands and the result, and its numbers per row."""
    return 2 * (3 * columns * itemsize + (2 + LANES) * 4)


def blocks_for(rows: int, hidden: int, itemsize: int, chip: Chip) -> Blocks:
    """Blocks for buffers [rows, hidden]: of whole rows, which need fewer transposes, or as few parts of equal width as
    the chip's VMEM allows."""
    line = nearest(TABLE, "unsort_bwd_rows", chip, itemsize)
    block_rows = min(line["rows"], -(-rows // LANES) * LANES)
    padded = -(-hidden // LANES) * LANES
    while block_rows > LANES and block_rows * row_bytes(padded, itemsize) > chip.window_bytes:
        block_rows = max(LANES, block_rows // 2 // LANES * LANES)
    room = (chip.window_bytes // block_rows - row_bytes(0, itemsize)) // (2 * 3 * itemsize)
    count = -(-hidden // max(LANES, room // LANES * LANES))
    columns = -(-hidden // (count * LANES)) * LANES
    return Blocks(rows=block_rows, columns=columns, tile_rows=line["tile_rows"])
