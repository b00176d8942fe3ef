"""Which axes of the mesh a collective joins.

Newer compilers name the axes, older ones and the compiler's own passes only list devices or invent axes
(`axis_0`). Those are named by matching: the groups that a set of mesh axes forms are compared with the
collective's, as partitions of the same devices.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from hloscope.hlo import Instruction, Module, ReplicaGroups, protos

# Axis names that the compiler makes up.
_INVENTED = re.compile(r"_?axis_\d+(:.*)?")

# A mesh with more axes of size above one than this is matched on all, single and paired axes only.
_MOST_AXES = 10

# More devices than any machine has: a larger mesh is damage.
_MOST_DEVICES = 2**22


class MeshAxes:
    """The mesh of a step, as the device ids of its collectives see it. Axes of size one are left out."""

    def __init__(self, mesh: Mapping[str, int], order: npt.NDArray[np.int64] | None = None) -> None:
        """`order` lists the module's device numbers in mesh order; None is 0, 1, 2, ..."""
        self.sizes = {name: size for name, size in mesh.items() if size > 1}
        self._order = np.arange(math.prod(self.sizes.values())) if order is None else order
        self._known: dict[str, tuple[str, ...] | None] = {}
        self._known_pairs: dict[tuple[tuple[int, int], ...], tuple[str, ...] | None] = {}

    def axes_of_groups(self, groups: ReplicaGroups | None) -> tuple[str, ...] | None:
        """The axes, in mesh order, that replica groups join; None if no axes do. No groups: all devices."""
        if groups is None:
            return tuple(self.sizes)
        if groups.text not in self._known:
            self._known[groups.text] = self._match(groups)
        return self._known[groups.text]

    def axes_of_pairs(self, pairs: tuple[tuple[int, int], ...]) -> tuple[str, ...] | None:
        """The axes along which source-target pairs of a permutation move; None if they leave the mesh."""
        if pairs not in self._known_pairs:
            self._known_pairs[pairs] = self._moved(pairs)
        return self._known_pairs[pairs]

    def _moved(self, pairs: tuple[tuple[int, int], ...]) -> tuple[str, ...] | None:
        ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        total = len(self._order)
        if not len(ends) or ends.min() < 0 or ends.max() >= total:
            return None
        position = np.empty(total, dtype=np.int64)
        position[self._order] = np.arange(total)
        coordinates = np.unravel_index(position[ends], tuple(self.sizes.values()) or (1,))
        moved = [bool((c[:, 0] != c[:, 1]).any()) for c in coordinates]
        return tuple(name for name, has_moved in zip(self.sizes, moved, strict=False) if has_moved)

    def _match(self, groups: ReplicaGroups) -> tuple[str, ...] | None:
        if groups.group_size == 1:
            return ()
        if groups.group_size * groups.group_count != len(self._order) or groups.groups is None:
            return None
        label = _labels(groups.groups, len(self._order))
        return None if label is None else self._partitions.get(label)

    @cached_property
    def _partitions(self) -> dict[bytes, tuple[str, ...]]:
        """Every set of axes by the partition of the devices that it forms."""
        names, sizes = tuple(self.sizes), tuple(self.sizes.values())
        counts = range(1, len(names) + 1) if len(names) <= _MOST_AXES else (1, 2, len(names))
        found: dict[bytes, tuple[str, ...]] = {}
        for count in counts:
            for inner in combinations(range(len(names)), count):
                outer = [i for i in range(len(names)) if i not in inner]
                width = math.prod(sizes[i] for i in inner)
                groups = self._order.reshape(sizes).transpose([*outer, *inner]).reshape(-1, width)
                label = _labels(groups, len(self._order))
                if label is not None:
                    found.setdefault(label, tuple(names[i] for i in inner))
        return found


def find_mesh(
    module: Module,
    collectives: Sequence[Instruction],
    mesh: Mapping[str, int] | None,
    mesh_device_ids: Sequence[int] | None,
) -> MeshAxes | None:
    """The step's own mesh where it is given, else the one that the module names, or None.

    A module counts its devices by their place in its device assignment, a mesh lists hardware ids: where
    both are known the one is translated to the other.
    """
    if mesh is not None:
        if mesh_device_ids is None:
            return _usable(mesh, None)
        order = _assigned_order(module, mesh_device_ids)
        return None if order is None else _usable(mesh, order)
    named = _named_mesh(module, collectives)
    return named and _usable({axis.name: axis.size for axis in named.axes}, list(named.device_ids) or None)


def mesh_axes_of(collective: Instruction, mesh: MeshAxes | None) -> tuple[str, ...] | None:
    """The mesh axes that a collective joins, in mesh order; None where they cannot be told."""
    if pairs := collective.source_target_pairs:
        return mesh.axes_of_pairs(pairs) if mesh else None
    groups = collective.replica_groups
    if groups is not None and groups.axes is not None and groups.mesh is not None:
        names = groups.axes
        if not any(_INVENTED.fullmatch(name) for name in groups.mesh):
            place = {name: i for i, name in enumerate(groups.mesh)}
            real = [n for n in names if groups.mesh.get(n, 2) > 1]
            return tuple(sorted(real, key=lambda n: place.get(n.split(":")[0], len(place))))
    return mesh.axes_of_groups(groups) if mesh else None


def _usable(mesh: Mapping[str, int], order: Sequence[int] | None) -> MeshAxes | None:
    """The mesh, or None where its size or its device order makes no sense."""
    total = math.prod(size for size in mesh.values() if size > 1)
    if total > _MOST_DEVICES or (order is not None and sorted(order) != list(range(total))):
        return None
    return MeshAxes(mesh, None if order is None else np.asarray(order, dtype=np.int64))


def _labels(groups: npt.NDArray[np.int64], total: int) -> bytes | None:
    """A partition of devices 0..total-1, as equal bytes for equal partitions: the least peer of each."""
    if groups.size != total or groups.min() < 0 or groups.max() >= total:
        return None
    labels = np.full(total, -1, dtype=np.int64)
    labels[groups] = groups.min(axis=1, keepdims=True)
    return None if (labels < 0).any() else labels.tobytes()


def _assigned_order(module: Module, mesh_device_ids: Sequence[int]) -> list[int] | None:
    """The module's numbers of the devices of a mesh; None if the module runs on other devices."""
    devices = module.proto.device_assignment.computation_devices
    assigned = [d.replica_device_ids[0] for d in devices if d.replica_device_ids]
    place = {device: i for i, device in enumerate(assigned)} or {d: d for d in range(len(mesh_device_ids))}
    if set(place) != set(mesh_device_ids) or len(place) != len(mesh_device_ids):
        return None
    return [place[device] for device in mesh_device_ids]


def _named_mesh(module: Module, collectives: Sequence[Instruction]) -> protos.Mesh | None:
    """The mesh with real axis names that most collectives and parameter shardings use."""
    counts: Counter[bytes] = Counter()
    meshes: dict[bytes, protos.Mesh] = {}
    candidates = [c.proto.mesh_axes_replica_group_list.mesh for c in collectives]
    for sharding in module.proto.spmd_parameters_shardings:
        candidates.extend(s.named_sharding.mesh for s in (sharding, *sharding.tuple_shardings))
    for mesh in candidates:
        if not mesh.axes or any(_INVENTED.fullmatch(axis.name) for axis in mesh.axes):
            continue
        key = mesh.SerializeToString()
        counts[key] += 1
        meshes[key] = mesh
    return meshes[max(counts, key=lambda k: counts[k])] if counts else None
