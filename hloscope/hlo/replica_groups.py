"""Replica groups: which devices a collective joins, in all three spellings.

Lists (`{{0,1},{2,3}}`), iota (`[8,2]<=[2,8]T(1,0)`) and mesh axes (`mesh['fsdp'=16,'expert'=8] {'fsdp'}`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from hloscope.errors import UserError
from hloscope.hlo import protos

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# More devices than any machine has: a larger number is damage, and expanding it would take the memory.
_MOST_DEVICES = 2**22


@dataclass(frozen=True, kw_only=True)
class ReplicaGroups:
    """The groups of a collective. `text` is XLA's spelling; `mesh` and `axes` are set where it named them."""

    text: str
    group_size: int
    group_count: int
    mesh: Mapping[str, int] | None = None
    axes: tuple[str, ...] | None = None
    _iota: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    _lists: tuple[tuple[int, ...], ...] | None = None

    @cached_property
    def groups(self) -> npt.NDArray[np.int64] | None:
        """Device ids as [group_count, group_size]; None where the groups differ in size."""
        import numpy as np

        if self._lists is not None:
            same = len({len(g) for g in self._lists}) == 1
            return np.asarray(self._lists, dtype=np.int64) if same else None
        if self._iota is None:
            return None
        dims, perm = self._iota
        ids = np.arange(math.prod(dims), dtype=np.int64).reshape(dims).transpose(perm)
        return ids.reshape(self.group_count, self.group_size)


@lru_cache(maxsize=2**8)
def decode_pairs(messages: tuple[bytes, ...]) -> tuple[tuple[int, int], ...]:
    """Every pair of a permutation; those of equal permutations, of which a module has many, are one object."""
    return tuple(map(decode_pair, messages))


@lru_cache(maxsize=2**16)
def decode_pair(message: bytes) -> tuple[int, int]:
    """From which device to which a pair of a permutation sends. Raises UserError for a damaged one."""
    try:
        pair = protos.SourceTarget.FromString(message)
    except DecodeError as error:
        raise UserError("a source-target pair is damaged: dump the module again") from error
    return pair.source, pair.target


def decode_replica_groups(proto: protos.Instruction) -> ReplicaGroups | None:
    """The replica groups of an instruction, or None if it names none."""
    if proto.HasField("mesh_axes_replica_group_list"):
        return _of_mesh(proto.mesh_axes_replica_group_list.SerializeToString())
    if proto.HasField("iota_collective_device_list"):
        return _of_iota(proto.iota_collective_device_list.SerializeToString())
    if proto.HasField("collective_device_list"):
        devices = proto.collective_device_list
        if devices.HasField("iota_replica_group_list"):
            return _of_iota(devices.iota_replica_group_list.SerializeToString())
        return _from_lists(tuple(tuple(g.replica_ids[:]) for g in devices.replica_groups))
    return _from_lists(tuple(tuple(g.replica_ids[:]) for g in proto.replica_groups))


# A module has many collectives over few groups.
@lru_cache(maxsize=2**8)
def _of_mesh(message: bytes) -> ReplicaGroups:
    return _from_mesh(protos.MeshAxesReplicaGroupList.FromString(message))


@lru_cache(maxsize=2**8)
def _of_iota(message: bytes) -> ReplicaGroups:
    return _from_iota(protos.IotaReplicaGroupList.FromString(message))


def _from_lists(groups: tuple[tuple[int, ...], ...]) -> ReplicaGroups | None:
    if not groups:
        return None
    text = "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in groups) + "}"
    size = max(map(len, groups))
    return ReplicaGroups(text=text, group_size=size, group_count=len(groups), _lists=groups)


def _from_iota(proto: protos.IotaReplicaGroupList) -> ReplicaGroups:
    dims = tuple(proto.iota_reshape_dims[:])
    perm = tuple(proto.iota_transpose_perm[:]) or tuple(range(len(dims)))
    text = f"[{proto.num_replica_groups},{proto.num_devices_per_group}]<=[{','.join(map(str, dims))}]"
    if perm != tuple(range(len(dims))):
        text += f"T({','.join(map(str, perm))})"
    total = math.prod(dims)
    if total > _MOST_DEVICES or total != proto.num_replica_groups * proto.num_devices_per_group:
        raise UserError(f"replica groups {text} do not describe a set of devices: the module is damaged")
    return ReplicaGroups(
        text=text,
        group_size=proto.num_devices_per_group,
        group_count=proto.num_replica_groups,
        _iota=(dims, perm),
    )


def _from_mesh(proto: protos.MeshAxesReplicaGroupList) -> ReplicaGroups:
    mesh = {a.name: a.size for a in proto.mesh.axes}
    names = list(mesh)
    refs = [(ref.mesh_axis_index, ref.sub_axis_info) for ref in proto.axes]
    if any(not 0 <= i < len(names) for i, _ in refs):
        raise UserError("replica groups name a mesh axis that the mesh does not have: the module is damaged")
    split = [(names[i], sub.pre_size, sub.size) if sub.size else (names[i], 0, 0) for i, sub in refs]
    axes = tuple(f"{n}:({pre}){size}" if size else n for n, pre, size in split)
    text = f"mesh[{','.join(f'{n!r}={s}' for n, s in mesh.items())}] {{{','.join(repr(a) for a in axes)}}}"
    total = math.prod(mesh.values())
    if total > _MOST_DEVICES:
        raise UserError(f"replica groups {text} do not describe a set of devices: the module is damaged")
    size = math.prod(s if s else mesh[n] for n, _, s in split)
    explicit = tuple(proto.mesh.device_ids[:])
    if explicit and len(explicit) != total:
        raise UserError(f"replica groups {text} list {len(explicit)} devices: the module is damaged")
    dims, perm = _mesh_permutation(mesh, split)
    lists = _lists_of(explicit, dims, perm, size) if explicit else None
    return ReplicaGroups(
        text=text,
        group_size=size,
        group_count=total // size if size else 0,
        mesh=mesh,
        axes=axes,
        _iota=None if lists else (dims, perm),
        _lists=lists,
    )


def _mesh_permutation(
    mesh: Mapping[str, int], split: list[tuple[str, int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Reshape dimensions and a permutation that brings the group's (sub)axes last, in their order."""
    cuts = {name: (pre, size) for name, pre, size in split if size}
    dims: list[int] = []
    place: dict[str, int] = {}
    for name, size in mesh.items():
        pre, sub = cuts.get(name, (1, size))
        parts = [pre, sub, size // (pre * sub) if pre * sub else 1]
        place[name] = len(dims) + 1
        dims += parts
    inner = [place[name] for name, _, _ in split]
    outer = [i for i in range(len(dims)) if i not in inner]
    return tuple(dims), tuple(outer + inner)


def _lists_of(
    ids: tuple[int, ...], dims: tuple[int, ...], perm: tuple[int, ...], size: int
) -> tuple[tuple[int, ...], ...]:
    import numpy as np

    order = np.asarray(ids, dtype=np.int64).reshape(dims).transpose(perm).reshape(-1, size)
    return tuple(tuple(int(i) for i in row) for row in order)
