"""Tables of what a static search found: TOML files beside the kernels, with the figures that each line rests on.

They are written by the searches in `benchmarks/`, and what a kernel runs with is read from them. A table is a list
`found` of lines, each for one chip (`generation` and `cores` as in `Chip`), operation and size of element.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from hloscope_kernels.chip import Chip


@cache
def lines_of(table: Path, operation: str) -> tuple[dict[str, Any], ...]:
    """The lines of a table for an operation, in the order of the file."""
    found = tomllib.loads(table.read_text(encoding="utf-8"))["found"]
    return tuple(line for line in found if line["operation"] == operation)


def nearest(table: Path, operation: str, chip: Chip, itemsize: int) -> dict[str, Any]:
    """The line for a chip and a size of element; where there is none, that of the nearest generation and size."""

    def distance(line: dict[str, Any]) -> tuple[int, int, int]:
        return (
            abs(line["generation"] - chip.generation),
            abs(line["cores"] - chip.cores),
            abs(line["itemsize"] - itemsize),
        )

    return min(lines_of(table, operation), key=distance)
