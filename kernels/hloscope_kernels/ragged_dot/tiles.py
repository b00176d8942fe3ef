"""Tile sizes of the TPU kernels: no padded work, then the least HBM traffic that the chip's VMEM allows.

Row tiles are fixed per generation (`ROW_TILE`): a larger one loads the matrix unit's weights less often, a
smaller one wastes less where a group ends inside it. Of the other two dimensions the whole is best, because
weights are then read once per group and rows once; where that does not fit, or two cores share the work, the
split with the least traffic is taken. A width is split into equal parts rounded up to 128 lanes.

`tiles.toml` keeps what the static search (`benchmarks/ragged_static.py --search`) found of the part of the product
that is computed at once, by chip, operation and contracted width, with the figures that it rests on. Where it has
nothing, rows are those of `ROW_TILE` and the product is computed whole, which is right everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hloscope_kernels.chip import Chip
from hloscope_kernels.searched import lines_of

LANES = 128
TABLE = Path(__file__).with_name("tiles.toml")

# The matrix unit is 128 wide up to v5p and 256 from v6e on.
ROW_TILE = {4: 128, 5: 128, 6: 256, 7: 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Tile sizes, in elements.

    Attributes:
      rows: rows of lhs per step.
      inner: the dot's contracted width, or the grouped contraction's first output width.
      outer: the output's last width.
      part: columns of the dot's output computed at once, in a loop; a divisor of `outer`, None for all of them.
    """

    rows: int
    inner: int
    outer: int
    part: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search found for one problem on one chip.

    Attributes:
      width: the problem's contracted width, or the contraction's first one.
      rows: rows of a tile.
      part: as in `Tiles`.
    """

    width: int
    rows: int
    part: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes per element of the two operands and of the output."""

    lhs: int
    rhs: int
    out: int


def vmem_budget(chip: Chip) -> int:
    """What the tiles of one kernel may take, in bytes: 5/8 of VMEM, and 48 MiB at most.

    Whole weights of a large expert need this much; more would leave XLA nothing to prefetch into.
    """
    return min(chip.vmem_bytes * 5 // 8, 48 << 20)


def dot_bytes(tiles: Tiles, element: ElementBytes) -> int:
    """VMEM of the dot kernel in bytes: double-buffered windows, the running sums and the new product."""
    windows = (
        tiles.rows * tiles.inner * element.lhs
        + tiles.inner * tiles.outer * element.rhs
        + tiles.rows * tiles.outer * element.out
    )
    return 2 * windows + 2 * tiles.rows * tiles.outer * 4


def contraction_bytes(tiles: Tiles, element: ElementBytes) -> int:
    """VMEM of the grouped contraction's kernel in bytes: double-buffered windows and the running sums."""
    windows = (
        tiles.rows * (tiles.inner * element.lhs + tiles.outer * element.rhs)
        + tiles.inner * tiles.outer * element.out
    )
    return 2 * windows + tiles.inner * tiles.outer * 4


def dot_tiles(
    chip: Chip, element: ElementBytes, *, m: int, k: int, n: int, groups: int, transposed: bool = False
) -> Tiles:
    """Tiles for `[m, k]` times `groups` weights of `[k, n]`, or of `[n, k]` when transposed."""

    def cost(tiles: Tiles) -> tuple[int, int]:
        weight_reads = groups if tiles.inner >= k else parts(m, tiles.rows) + groups
        traffic = m * k * element.lhs * parts(n, tiles.outer) + weight_reads * k * n * element.rhs
        return parts(k, tiles.inner) * tiles.inner * _share(n, tiles.outer, chip), traffic

    operation = "transposed" if transposed else "dot"
    known = found(chip, operation, element, k)
    candidates = _candidates(row_tile(chip, operation, element, k), k, n)
    best = min((t for t in candidates if dot_bytes(t, element) <= vmem_budget(chip)), key=cost)
    return replace(best, part=_part(best.outer, known.part if known else None))


def contraction_tiles(chip: Chip, element: ElementBytes, *, m: int, p: int, q: int) -> Tiles:
    """Tiles for the contraction of `[m, p]` and `[m, q]` over each group's rows."""

    def cost(tiles: Tiles) -> tuple[int, int]:
        traffic = m * p * element.lhs * parts(q, tiles.outer) + m * q * element.rhs * parts(p, tiles.inner)
        return _share(p, tiles.inner, chip) * parts(q, tiles.outer) * tiles.outer, traffic

    candidates = _candidates(row_tile(chip, "contraction", element, p), p, q)
    return min((t for t in candidates if contraction_bytes(t, element) <= vmem_budget(chip)), key=cost)


def row_tile(chip: Chip, operation: str, element: ElementBytes, width: int) -> int:
    """Rows of a tile; `width` is the contracted width, or the contraction's first one."""
    known = found(chip, operation, element, width)
    return known.rows if known else ROW_TILE[chip.generation]


def parts(width: int, tile: int) -> int:
    """How many tiles cover a width."""
    return -(-width // tile)


def _share(width: int, tile: int, chip: Chip) -> int:
    """The padded width that one core works on, when the cores of a chip divide the tiles."""
    return parts(parts(width, tile), chip.cores) * tile


def found(chip: Chip, operation: str, element: ElementBytes, width: int) -> Found | None:
    """What the search found for a chip, an operation and operands of this size: at the widest contracted width (the
    contraction's first one) that is not above `width`, or else the narrowest; None where nothing was searched."""
    known = sorted(
        (
            Found(width=line["problem"][1], rows=line["rows"], part=line["part"] or None)
            for line in lines_of(TABLE, operation)
            if (line["generation"], line["cores"]) == (chip.generation, chip.cores)
            and element == ElementBytes(lhs=line["itemsize"], rhs=line["itemsize"], out=line["itemsize"])
        ),
        key=lambda one: one.width,
    )
    below = [one for one in known if one.width <= width]
    return (below[-1:] or known[:1] or [None])[0]


def _part(width: int, wished: int | None) -> int | None:
    """The largest divisor of a width that is whole lanes and not above what is wished; None where none is smaller."""
    if wished is None or width % LANES:
        return None
    part = next(part for part in range(wished, 0, -LANES) if width % part == 0)
    return part if part < width else None


def _candidates(rows: int, inner: int, outer: int) -> Iterator[Tiles]:
    for one in _splits(inner):
        for other in _splits(outer):
            yield Tiles(rows=rows, inner=one, outer=other)


def _splits(width: int) -> Iterator[int]:
    yield width
    for count in range(2, parts(width, LANES) + 1):
        yield parts(width, count * LANES) * LANES
