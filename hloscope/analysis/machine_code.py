"""Reads the machine code that the TPU compiler lists for one instruction: bundles by loop, slots in use, transfers.

A bundle is one instruction word; one is issued in a cycle when nothing stalls. The listing is meant for the
compiler's own people and changes without notice: what is not recognised is None, never a wrong number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# "  0x3b LB: >> { ...": address, what begins there, depth of the loop.
_BUNDLE = re.compile(
    r"^\s*(?:0x[0-9a-f]+|0)\s+(?P<mark>[A-Z]{2})?\s*:\s*(?P<depth>[> ]*?)\s*\{(?P<empty>\})?"
)
_TRIPS = re.compile(r"scmp\.ge\.s32\.totalorder [^,;]*, (?P<trips>\d+) /\* loop exit test \*/")
_TRANSFER = re.compile(r"= dma\.(?P<way>hbm_to_vmem|vmem_to_hbm)\b(?P<rest>[^;]*)")
_SIZE = re.compile(r"/\*size_in_granules=\*/(\d+)\b")
_GRANULE = 32  # bytes
_FILL, _SPILL = "VLOAD:FILL", "VSTORE:SPILL"


@dataclass(slots=True, kw_only=True)
class Stretch:
    """Bundles of one loop's body without the loops inside it, or, at depth 0, those outside of all loops.

    `trips` is the count that the loop's exit test names, None where it depends on data or is not shown. `slots` are
    the slots in use, by unit, summed over the bundles; None where there is no table of them. `read_bytes` and
    `written_bytes` are the transfers from and to HBM that the bundles start, each once; None where a size is not shown.
    """

    depth: int
    bundles: int = 0
    trips: int | None = None
    slots: dict[str, int] | None = field(default_factory=dict[str, int])
    read_bytes: int | None = 0
    written_bytes: int | None = 0
    inner: list[Stretch] = field(default_factory=list["Stretch"])


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """The program of one instruction. `capacity` is how many slots of each unit a bundle has; empty if not told.

    `fills` and `spills` count vector registers reloaded from and put away to VMEM, by instruction in the listing.
    """

    outside: Stretch
    capacity: dict[str, int]
    fills: int | None
    spills: int | None

    @property
    def loops(self) -> list[Stretch]:
        """The outermost loops, in program order."""
        return self.outside.inner

    def at_depth(self, depth: int) -> list[Stretch]:
        """The loops of one nesting depth, in program order."""
        found = [self.outside]
        for _ in range(depth):
            found = [loop for stretch in found for loop in stretch.inner]
        return found


def read_machine_code(bundles: str, utilization: str | None) -> MachineCode | None:
    """Read a `final_bundles` listing and its `hlo-static-per-bundle-utilization` table. None if there is no bundle
    in the listing; what the table does not fit to is left out."""
    found = [(match, line) for line in bundles.splitlines() if (match := _BUNDLE.match(line))]
    if not found:
        return None
    units, capacity, rows = _table(utilization)
    # A row for each bundle, or it is the table of something else.
    usable = len(rows) == len(found)
    outside = Stretch(depth=0, slots={} if usable else None)
    path = [outside]
    for number, (match, line) in enumerate(found):
        # An empty bundle is printed without its depth; it stands where the one before does.
        depth = path[-1].depth if match["empty"] else match["depth"].count(">")
        while path[-1].depth > depth or (path[-1].depth == depth > 0 and match["mark"] == "LB"):
            path.pop()
        # Every loop begins with a mark. Without one it is the last loop that goes on, as in the delay slots behind the
        # branch to its begin.
        known = depth - (match["mark"] == "LB")
        while path[-1].depth < known and path[-1].inner:
            path.append(path[-1].inner[-1])
        if path[-1].depth < depth:
            path[-1].inner.append(Stretch(depth=depth, slots={} if usable else None))
            path.append(path[-1].inner[-1])
        _add(path[-1], line, dict(zip(units, rows[number], strict=True)) if usable else None)
    total = _total(outside) if usable else None
    return MachineCode(
        outside=outside,
        capacity=dict(zip(units, capacity, strict=True)) if usable else {},
        fills=None if total is None else total.get(_FILL),
        spills=None if total is None else total.get(_SPILL),
    )


def _add(stretch: Stretch, line: str, slots: dict[str, int] | None) -> None:
    stretch.bundles += 1
    if stretch.slots is not None and slots is not None:
        for unit, used in slots.items():
            stretch.slots[unit] = stretch.slots.get(unit, 0) + used
    if trips := _TRIPS.search(line):
        stretch.trips = int(trips["trips"])
    for transfer in _TRANSFER.finditer(line):
        size = _SIZE.search(transfer["rest"])
        amount = int(size[1]) * _GRANULE if size else None
        if transfer["way"] == "hbm_to_vmem":
            stretch.read_bytes = _plus(stretch.read_bytes, amount)
        else:
            stretch.written_bytes = _plus(stretch.written_bytes, amount)


def _plus(total: int | None, amount: int | None) -> int | None:
    return None if total is None or amount is None else total + amount


def _total(stretch: Stretch) -> dict[str, int]:
    total = dict(stretch.slots or {})
    for inner in stretch.inner:
        for unit, used in _total(inner).items():
            total[unit] = total.get(unit, 0) + used
    return total


def _table(text: str | None) -> tuple[list[str], list[int], list[list[int]]]:
    """Units, their slots in a bundle, and the slots in use by bundle; all empty if it is not such a table."""
    head, mark, body = (text or "").partition("== UTILIZATION:")
    lines = head.splitlines()
    if not mark or len(lines) < 3:
        return [], [], []
    units = [unit.strip() for unit in lines[-2].split(",")]
    try:
        capacity, *rows = [
            [int(cell) for cell in row.split()] for row in (lines[-1], *filter(str.strip, body.splitlines()))
        ]
    except ValueError:
        return [], [], []
    fits = all(len(row) == len(units) for row in (capacity, *rows))
    return (units, capacity, rows) if fits else ([], [], [])
