"""Meshes, replica groups and shardings as HLO text: the inverse of `text_devices`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloscope.hlo import protos

_TUPLE = 2
_TYPES = {0: "replicated", 1: "maximal", 4: "manual", 5: "unknown", 6: "unreduced"}


def replica_groups_text(proto: protos.Instruction) -> str | None:
    """The devices that a collective joins, in the spelling that its message uses; None where it names none."""
    if proto.HasField("mesh_axes_replica_group_list"):
        by_axes = proto.mesh_axes_replica_group_list
        return f"{_mesh(by_axes.mesh)} {{{_axes(by_axes.mesh, by_axes.axes)}}}"
    if proto.HasField("iota_collective_device_list"):
        return _iota_groups(proto.iota_collective_device_list)
    if proto.HasField("collective_device_list"):
        devices = proto.collective_device_list
        if devices.HasField("iota_replica_group_list"):
            return _iota_groups(devices.iota_replica_group_list)
        return lists_text(g.replica_ids for g in devices.replica_groups)
    return lists_text(g.replica_ids for g in proto.replica_groups) if proto.replica_groups else None


def lists_text(lists: Iterable[Iterable[int]]) -> str:
    """`{{0,1},{2,3}}`."""
    return f"{{{','.join(f'{{{_joined(part)}}}' for part in lists)}}}"


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _iota_groups(iota: protos.IotaReplicaGroupList) -> str:
    counts = (iota.num_replica_groups, iota.num_devices_per_group)
    return _iota(counts, iota.iota_reshape_dims, iota.iota_transpose_perm)


def _iota(counts: Iterable[int], dims: Iterable[int], perm: Iterable[int]) -> str:
    order = list(perm)
    tail = f"T({_joined(order)})" if order != sorted(order) else ""
    return f"[{_joined(counts)}]<=[{_joined(dims)}]{tail}"


def _mesh(mesh: protos.Mesh) -> str:
    if not mesh.axes and mesh.device_ids:
        return f"maximal_mesh[device_id={mesh.device_ids[0]}]"
    axes = ",".join(f"'{axis.name}'={axis.size}" for axis in mesh.axes)
    ids = f", device_ids=({_joined(mesh.device_ids)})" if mesh.device_ids else ""
    return f"mesh[{axes}]{ids}"


def _axes(mesh: protos.Mesh, refs: Iterable[protos.AxisRef]) -> str:
    return ", ".join(_axis(mesh, ref) for ref in refs)


def _axis(mesh: protos.Mesh, ref: protos.AxisRef) -> str:
    place = ref.mesh_axis_index
    name = mesh.axes[place].name if 0 <= place < len(mesh.axes) else str(place)
    cut = f":({ref.sub_axis_info.pre_size}){ref.sub_axis_info.size}" if ref.HasField("sub_axis_info") else ""
    return f"'{name}'{cut}"


def sharding_text(sharding: protos.OpSharding) -> str:
    """A sharding in braces."""
    if sharding.type == _TUPLE:
        return f"{{{', '.join(map(sharding_text, sharding.tuple_shardings))}}}"
    if sharding.HasField("named_sharding"):
        return f"{{{', '.join(_named(sharding.named_sharding))}}}"
    return f"{{{' '.join(_words(sharding))}}}"


def _words(sharding: protos.OpSharding) -> Iterator[str]:
    if sharding.type in _TYPES:
        yield _TYPES[sharding.type]
        if sharding.type == 1 and sharding.tile_assignment_devices:
            yield f"device={sharding.tile_assignment_devices[0]}"
        return
    counts = sharding.tile_assignment_dimensions
    if sharding.iota_reshape_dims:
        yield f"devices={_iota(counts, sharding.iota_reshape_dims, sharding.iota_transpose_perm)}"
    elif counts:
        yield f"devices=[{_joined(counts)}]{_joined(sharding.tile_assignment_devices)}"
    if sharding.replicate_on_last_tile_dim:
        yield "last_tile_dim_replicate"
    if sharding.last_tile_dims:
        yield f"last_tile_dims={{{', '.join(_TYPES.get(t, 'manual') for t in sharding.last_tile_dims)}}}"


def _named(named: protos.NamedSharding) -> Iterator[str]:
    mesh = named.mesh
    yield _mesh(mesh)
    if named.dim_shardings:
        parts = (
            _axes(mesh, d.axes) + ("" if d.is_closed else ", ?" if d.axes else "?")
            for d in named.dim_shardings
        )
        yield f"[{', '.join(f'{{{part}}}' for part in parts)}]"
    if named.replicated_axes:
        yield f"replicated={{{_axes(mesh, named.replicated_axes)}}}"
    if named.unreduced_axes:
        yield f"unreduced={{{_axes(mesh, named.unreduced_axes)}}}"
