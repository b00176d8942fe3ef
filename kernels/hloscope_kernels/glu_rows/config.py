"""Block sizes of `glu_rows`: `blocks.toml`, found by `benchmarks/kernels_static.py --search --write`.

What was found at mlp = 1024 is kept for other widths: the tile, and the bytes of a block, so that wider rows get
fewer of them. A chip or dtype that was not searched takes what its nearest neighbour has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax

from hloscope_kernels.chip import Chip
from hloscope_kernels.searched import nearest

TABLE = Path(__file__).with_name("blocks.toml")
_LANES = 128
# The compiler of jax before 0.12 spills in loops that have more rows written out.
_OLD_COMPILER = jax.__version_info__ < (0, 12)
_OLD_TILE_ROWS = {"glu_rows": 128, "glu_rows_bwd": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How a buffer is cut.

    Attributes:
      rows: rows that one grid step fetches and writes, a multiple of `tile_rows`.
      tile_rows: rows that one step of the inner loop computes, written out; a multiple of 16.
      tile_columns: columns of mlp computed at once, a multiple of the 128 lanes.
    """

    rows: int
    tile_rows: int
    tile_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What the search chose.

    Attributes:
      step_bytes: bytes that one grid step reads and writes: enough to hide HBM's latency, few enough
        that the first fetch and the last write, which nothing hides, and the rows between limit and
        the end of its block cost little.
      tile_rows, tile_columns: the tile with the fewest bundles among those without spills.
      tile_numbers: numbers of one operand in a tile, which is as long as the code gets.
    """

    step_bytes: int
    tile_rows: int
    tile_columns: int
    tile_numbers: int


def forward_blocks(rows: int, mlp: int, itemsize: int, chip: Chip) -> Blocks:
    """Blocks for the forward kernel: it reads 2 * mlp and writes mlp columns a row."""
    return _fit(_wish("glu_rows", itemsize, chip), rows, mlp, _padded(2 * mlp) + _padded(mlp), itemsize, chip)


def backward_blocks(rows: int, mlp: int, itemsize: int, chip: Chip) -> Blocks:
    """Blocks for the backward kernel: it reads 3 * mlp and writes 2 * mlp columns a row."""
    columns = 2 * _padded(2 * mlp) + _padded(mlp)
    return _fit(_wish("glu_rows_bwd", itemsize, chip), rows, mlp, columns, itemsize, chip)


def widest_mlp(itemsize: int, chip: Chip) -> int:
    """The widest mlp of which two windows of 16 rows of each operand fit the chip's VMEM."""
    return chip.window_bytes // (2 * 16 * itemsize * 5) // _LANES * _LANES


def _wish(operation: str, itemsize: int, chip: Chip) -> _Wish:
    line = nearest(TABLE, operation, chip, itemsize)
    mlp, moved = line["problem"][2], 3 if operation == "glu_rows" else 5
    return _Wish(
        step_bytes=line["rows"] * mlp * moved * line["itemsize"],
        tile_rows=min(line["tile_rows"], _OLD_TILE_ROWS[operation]) if _OLD_COMPILER else line["tile_rows"],
        tile_columns=line["tile_columns"],
        tile_numbers=line["tile_rows"] * mlp,
    )


def _fit(wish: _Wish, rows: int, mlp: int, columns: int, itemsize: int, chip: Chip) -> Blocks:
    row_bytes = columns * itemsize
    room = min(wish.step_bytes, chip.window_bytes // 2) // row_bytes
    tile_rows = wish.tile_rows
    # Narrow tiles for wide or few rows; 16 rows are what a register of bfloat16 pairs up.
    while tile_rows > 16 and (tile_rows > min(room, rows) or tile_rows * mlp > wish.tile_numbers):
        tile_rows //= 2
    in_buffer = -(-rows // tile_rows) * tile_rows
    block_rows = max(tile_rows, min(room // tile_rows * tile_rows, in_buffer))
    return Blocks(rows=block_rows, tile_rows=tile_rows, tile_columns=wish.tile_columns)


def _padded(columns: int) -> int:
    return -(-columns // _LANES) * _LANES
