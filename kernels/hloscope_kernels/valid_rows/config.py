"""Block sizes of `valid_rows`, from widths, dtypes and the chip's VMEM."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope_kernels.chip import Chip
from hloscope_kernels.lanes import LANES

# Found on the hand-written kernels: enough bytes a step to hide HBM's latency, few enough that the first
# fetch and the last write, which nothing hides, and limit's partly dead block cost little.
_STEP_BYTES = 4 << 20
_FEWEST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How the buffers are cut.

    Attributes:
      rows: rows that one grid step fetches and writes, a multiple of `tile_rows`.
      tile_rows: rows that one step of the inner loop computes.
      tile_columns: columns computed at once, a multiple of the 128 lanes.
    """

    rows: int
    tile_rows: int
    tile_columns: int


def blocks_for(rows: int, row_bytes: int, vectors: int, operations: int, chip: Chip) -> Blocks | None:
    """Blocks for buffers that take `row_bytes` a row together, None where the rows are too wide.

    Numbers per row (`vectors` of them) come in groups of 128. The more operations, the smaller the
    tile: each keeps values in registers while others wait for exponentials.
    """
    step = LANES if vectors else _FEWEST_ROWS
    # Each number per row stands in 128 lanes of 4 bytes while its block is worked on.
    room = chip.window_bytes // (2 * row_bytes + vectors * LANES * 4)
    if room < step:
        return None
    # A power of two of groups: it divides the usual buffers, which then need no padding.
    groups = min(room, max(_STEP_BYTES // row_bytes, step), -(-rows // step) * step) // step
    block_rows = step << (groups.bit_length() - 1)
    if vectors:
        tile_rows, tile_columns = 32, LANES
    elif operations <= 10:
        tile_rows, tile_columns = 64, 2 * LANES
    else:
        tile_rows, tile_columns = 16, 2 * LANES
    while block_rows % tile_rows:
        tile_rows //= 2
    return Blocks(rows=block_rows, tile_rows=tile_rows, tile_columns=tile_columns)
