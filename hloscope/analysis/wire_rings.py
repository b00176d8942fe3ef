"""How a group of devices lies on the torus: which of its axes it fills, with rings or with lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.analysis.wire_place import AXES

if TYPE_CHECKING:
    import numpy.typing as npt

    from hloscope.analysis.wire_place import Torus


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The chips of a group along one axis of the torus.

    Joined ends make a ring, which data goes around both ways, so that two links of a chip work; else it is a
    line, at whose ends one does. `shared_by` groups use the same links at the same time.
    """

    axis: str
    size: int
    stride: int  # chips from one of the group to the next
    wraps: bool
    shared_by: int

    @property
    def links(self) -> int:
        """Links of a chip that work at the same time."""
        return 2 if self.wraps else 1

    @property
    def hops(self) -> int:
        """Steps until every chip has heard from every other."""
        return self.stride * (self.size // 2 if self.wraps else self.size - 1)

    def __str__(self) -> str:
        return f"{self.axis} {'ring' if self.wraps else 'line'} of {self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A group that fills a box of the torus: `rings` along its axes, on `chips` chips, `cores` devices of each.

    `slices` counts the slices that the group spans, each with such a box.
    """

    rings: tuple[Ring, ...]
    chips: int
    cores: int
    slices: int

    @property
    def links(self) -> float:
        """Links of a chip that this group has for itself, all axes at work at the same time."""
        return sum(ring.links / ring.shared_by for ring in self.rings)

    @property
    def hops(self) -> int:
        """Steps until every device has heard from every other of its slice."""
        return sum(ring.hops for ring in self.rings) + (self.cores > 1)


def find_box(torus: Torus, members: npt.NDArray[np.int64]) -> Box | None:
    """The box that one group (device numbers) fills; None if it has gaps that are not even."""
    slices, counts = np.unique(torus.slices[members], return_counts=True)
    if len(set(counts.tolist())) != 1:
        return None
    found = {_box(torus, torus.places[members[torus.slices[members] == s]], len(slices)) for s in slices}
    return found.pop() if len(found) == 1 else None


def _box(torus: Torus, places: npt.NDArray[np.int64], slices: int) -> Box | None:
    along = [np.unique(places[:, i]) for i in range(4)]
    # As many different places as the box has, so all of them.
    if math.prod(map(len, along)) != len(places):
        return None
    cores = len(along[3])
    rings: list[Ring] = []
    for axis in range(3):
        positions = along[axis]
        if len(positions) == 1:
            continue
        gaps = np.unique(np.diff(positions))
        if len(gaps) != 1:
            return None
        stride, size = int(gaps[0]), len(positions)
        wraps = torus.wraps[axis] and stride * size == torus.shape[axis]
        # All groups work at once: those in the gaps, and those on the other cores of the same chips.
        shared_by = stride * (torus.cores // cores)
        rings.append(Ring(axis=AXES[axis], size=size, stride=stride, wraps=wraps, shared_by=shared_by))
    chips = math.prod(ring.size for ring in rings)
    return Box(rings=tuple(rings), chips=chips, cores=cores, slices=slices)
