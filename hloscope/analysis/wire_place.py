"""Where the devices of a module stand on the torus of chips that they run on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.analysis.wire_strategy import told_wraps

if TYPE_CHECKING:
    import numpy.typing as npt

    from hloscope.devices import Chip, Ici
    from hloscope.hlo import Module

AXES = ("x", "y", "z")

# How libtpu numbers the devices of several slices: 100000 and up are the first's, 200000 and up the second's.
_SLICE = 100_000

# More devices than any machine has: a larger topology is a slip.
_MOST_DEVICES = 2**22

_NAME = re.compile(r"[^:=_]+[:=_](?P<shape>[1-9]\d*(?:x[1-9]\d*){1,2})")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Torus:
    """A module's devices on their chips' mesh.

    `shape` counts chips along x, y, z, `wraps` says which of these axes have their ends joined, `cores` how many
    devices a chip has. `places` is [devices, 4], x, y, z and core of each device by its number in the module's
    replica groups; `slices` is [devices], the slice that each is in. `source` tells how the places are known.
    """

    ici: Ici
    shape: tuple[int, int, int]
    wraps: tuple[bool, bool, bool]
    cores: int
    places: npt.NDArray[np.int64]
    slices: npt.NDArray[np.int64]
    source: str

    @property
    def count(self) -> int:
        """Devices of the module."""
        return len(self.places)


def find_torus(
    module: Module,
    *,
    chip: Chip | None,
    topology: str | None,
    coordinates: Sequence[Sequence[int]] | None = None,
    wraps: Sequence[bool] | None = None,
) -> Torus | None:
    """The torus of a module, or None where it is not known: no chip, no topology, or one that does not fit.

    `coordinates` are x, y, z and core of every device of the topology by id, as the compiler gave them; without
    them they follow from the topology's name, in which devices are numbered core first, then x, y and z. `wraps`
    are the axes with joined ends that the compiler was told of; without it they are what the module's own
    collectives say, and else those that a slice of this shape has.
    """
    if chip is None:
        return None
    ids = _assigned_ids(module)
    shape = None if topology is None else topology_shape(topology)
    if coordinates is not None:
        table, source = np.asarray(coordinates, dtype=np.int64).reshape(-1, 4), "the compiler's coordinates"
    elif shape is not None and len(shape) == chip.ici.dimensions:
        table, source = numbered(shape, chip.devices_per_chip), f"the order of {topology}"
    else:
        return None
    if ids is None or not len(table):
        return None
    several = ids >= _SLICE
    local, slices = np.where(several, ids % _SLICE, ids), np.where(several, ids // _SLICE, 0)
    if ids.min() < 0 or local.max() >= len(table) or len(np.unique(ids)) != len(ids):
        return None
    most = table.max(axis=0) + 1
    full = (int(most[0]), int(most[1]), int(most[2]))
    return Torus(
        ici=chip.ici,
        shape=full,
        wraps=_wraps(chip.ici, full, module) if wraps is None else _three(wraps),
        cores=int(most[3]),
        places=table[local],
        slices=slices,
        source=source,
    )


def topology_shape(topology: str) -> tuple[int, ...] | None:
    """Chips along each axis by a topology's name (`tpu7x:4x4x4`); None if it has none, or is twisted."""
    found = _NAME.fullmatch(topology.strip().lower())
    if found is None:
        return None
    shape = tuple(map(int, found["shape"].split("x")))
    return shape if math.prod(shape) <= _MOST_DEVICES else None


def numbered(shape: Sequence[int], cores: int) -> npt.NDArray[np.int64]:
    """x, y, z and core by device id, [devices, 4]: ids count cores first, then x, y, z, as libtpu does."""
    x, y, z = (*shape, 1)[:3]
    ids = np.arange(x * y * z * cores, dtype=np.int64)
    chips = ids // cores
    return np.stack([chips % x, chips // x % y, chips // (x * y), ids % cores], axis=1)


def _wraps(ici: Ici, shape: tuple[int, int, int], module: Module) -> tuple[bool, bool, bool]:
    usual, told = dict(zip(AXES, ici.wraps(shape), strict=False)), told_wraps(module)
    x, y, z = (told.get(axis, usual.get(axis, False)) for axis in AXES)
    return (x, y, z)


def _three(wraps: Sequence[bool]) -> tuple[bool, bool, bool]:
    x, y, z, *_ = (*wraps, False, False, False)
    return (x, y, z)


def _assigned_ids(module: Module) -> npt.NDArray[np.int64] | None:
    """The hardware ids of a module's devices, by their number in replica groups; None if it does not tell."""
    devices = module.proto.device_assignment.computation_devices
    # With replicas as well as partitions the numbers mean something else.
    if not devices or any(len(d.replica_device_ids) != 1 for d in devices):
        return None
    return np.asarray([d.replica_device_ids[0] for d in devices], dtype=np.int64)
