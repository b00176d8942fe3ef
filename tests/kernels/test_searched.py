"""What the static searches kept is what the kernels run with; what was not searched falls back soundly."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest
from tpu_chips import CHIPS

import hloscope_kernels
from hloscope_kernels.chip import Chip
from hloscope_kernels.glu_rows import config as glu
from hloscope_kernels.ragged_dot import tiles as ragged
from hloscope_kernels.ragged_dot.tiles import ElementBytes, Tiles, contraction_tiles, dot_tiles
from hloscope_kernels.unsort_bwd_rows import config as unsort

BF16 = ElementBytes(lhs=2, rhs=2, out=2)
F32 = ElementBytes(lhs=4, rhs=4, out=4)


def lines(table: Path) -> list[dict[str, Any]]:
    return tomllib.loads(table.read_text(encoding="utf-8"))["found"]


def label(line: dict[str, Any]) -> str:
    return f"{line['chip']}-{line['operation']}-{'x'.join(map(str, line['problem']))}"


def test_every_table_of_the_package_is_one_of_these() -> None:
    tables = {table for root in hloscope_kernels.__path__ for table in Path(root).rglob("*.toml")}
    tables -= {Path(ragged.__file__).with_name("regions.toml")}
    assert tables == {glu.TABLE, unsort.TABLE, ragged.TABLE}


@pytest.mark.parametrize(
    "table", [glu.TABLE, unsort.TABLE, ragged.TABLE], ids=lambda table: table.parent.name
)
def test_a_line_says_for_whom_it_is_and_what_it_rests_on(table: Path) -> None:
    for line in lines(table):
        chip = CHIPS[line["chip"]]
        assert (line["generation"], line["cores"]) == (chip.generation, chip.cores)
        assert line["itemsize"] in (2, 4)
        assert line["libtpu"]
        assert line["spills"] >= 0
    assert {line["chip"] for line in lines(table)} >= {"v5e", "v5p", "v6e", "tpu7x"}


@pytest.mark.parametrize("line", [*lines(glu.TABLE), *lines(unsort.TABLE)], ids=label)
def test_a_row_kernel_runs_with_what_was_found(line: dict[str, Any]) -> None:
    rows, _, width = line["problem"]
    find = {
        "glu_rows": glu.forward_blocks,
        "glu_rows_bwd": glu.backward_blocks,
        "unsort_bwd_rows": unsort.blocks_for,
    }[line["operation"]]
    blocks = find(rows, width, line["itemsize"], CHIPS[line["chip"]])
    if jax.__version_info__ < (0, 12):  # Its compiler would spill.
        line = line | {
            "tile_rows": {"glu_rows": 128, "glu_rows_bwd": 16}.get(line["operation"], line["tile_rows"])
        }
    for name in blocks.__slots__:
        assert getattr(blocks, name) == line[name], name


@pytest.mark.parametrize("line", lines(ragged.TABLE), ids=label)
def test_a_grouped_matmul_runs_with_what_was_found(line: dict[str, Any]) -> None:
    m, first, last, groups = line["problem"]
    chip = CHIPS[line["chip"]]
    if line["operation"] == "contraction":
        tiles = contraction_tiles(chip, BF16, m=m, p=first, q=last)
    else:
        transposed = line["operation"] == "transposed"
        tiles = dot_tiles(chip, BF16, m=m, k=first, n=last, groups=groups, transposed=transposed)
    expected = Tiles(
        rows=line["rows"], inner=line["tile"][0], outer=line["tile"][1], part=line["part"] or None
    )
    assert tiles == expected


@pytest.mark.parametrize("width", [1, 100, 128, 640, 768, 1000, 1920, 7168])
@pytest.mark.parametrize("element", [BF16, F32], ids=["bf16", "f32"])
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_parts_divide_the_tile_in_whole_lanes(chip: Chip, element: ElementBytes, width: int) -> None:
    for transposed in (False, True):
        for k in (96, 512, 2048, 8192):
            tiles = dot_tiles(chip, element, m=8192, k=k, n=width, groups=16, transposed=transposed)
            assert tiles.rows % 8 == 0
            if tiles.part is not None:
                assert tiles.outer % tiles.part == 0
                assert tiles.part % ragged.LANES == 0
                assert tiles.part < tiles.outer


@pytest.mark.parametrize(
    "chip", [CHIPS["v4"], Chip(generation=5, cores=1, vmem_bytes=16 << 20)], ids=["v4", "small"]
)
def test_what_was_not_searched_takes_its_neighbours_blocks_and_fits(chip: Chip) -> None:
    for itemsize in (2, 4):
        forward, backward = (
            find(4096, 1024, itemsize, chip) for find in (glu.forward_blocks, glu.backward_blocks)
        )
        for blocks, moved in ((forward, 3), (backward, 5)):
            assert blocks.rows % blocks.tile_rows == 0
            assert 2 * blocks.rows * moved * 1024 * itemsize <= chip.window_bytes
        blocks = unsort.blocks_for(4096, 4096, itemsize, chip)
        assert 2 * 3 * blocks.rows * blocks.columns * itemsize <= chip.window_bytes


def test_operands_that_were_not_searched_get_the_product_whole() -> None:
    for chip in CHIPS.values():
        tiles = dot_tiles(chip, F32, m=4096, k=1024, n=1024, groups=16)
        assert (tiles.rows, tiles.part) == (ragged.ROW_TILE[chip.generation], None)
