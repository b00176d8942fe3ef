"""Reads the machine code that the TPU compiler dumps for one program: bundles by loop, spills.

The compiler writes it only when asked before its first topology is made, so compiling happens in a
process of its own (see `kernels_static.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DUMP_ARGS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=final_bundles|final_hlo-static-per-bundle"
)

# "  0x3b LB: >> { ...": address, what begins there, depth of the loop.
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?P<mark>[A-Z]{2})?\s*:\s*(?P<depth>[> ]*?)\s*\{")
# Columns of the utilization table that count spills: reloads and stores.
_FILL, _SPILL = 6, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop of a program: the bundles of one trip, without those of the loops inside it."""

    depth: int
    bundles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """Bundles (one a cycle when nothing stalls) of one instruction's program, and its spills."""

    straight: int
    loops: tuple[Loop, ...]
    spills: int

    def at_depth(self, depth: int) -> tuple[Loop, ...]:
        """The loops of one nesting depth, in program order."""
        return tuple(loop for loop in self.loops if loop.depth == depth)


def read_machine_code(bundles: Path) -> MachineCode:
    """Read a `*-final_bundles.txt`; the utilization table lies beside it."""
    straight = 0
    open_loops: list[list[int]] = []  # [depth, bundles]
    done: list[list[int]] = []
    for line in bundles.read_text(errors="replace").splitlines():
        found = _BUNDLE.match(line)
        if found is None:
            continue
        depth = found["depth"].count(">")
        if found["mark"] == "LB":
            open_loops = [loop for loop in open_loops if loop[0] < depth]
            open_loops.append([depth, 0])
            done.append(open_loops[-1])
        open_loops = [loop for loop in open_loops if loop[0] <= depth]
        if open_loops and open_loops[-1][0] == depth:
            open_loops[-1][1] += 1
        else:
            straight += 1
    loops = tuple(Loop(depth=depth, bundles=count) for depth, count in done)
    return MachineCode(straight=straight, loops=loops, spills=_spills(bundles))


def _spills(bundles: Path) -> int:
    (table,) = bundles.parent.glob(bundles.name.split("-02-")[0] + "-00-final_hlo-static*")
    rows = table.read_text().split("== UTILIZATION:")[1].splitlines()
    cells = [row.split() for row in rows if row.strip()]
    return sum(int(row[_FILL]) + int(row[_SPILL]) for row in cells)
