"""Devices in HLO text: meshes, replica groups in their three spellings, and shardings."""

from __future__ import annotations

import math
import re

from hloscope.hlo import protos
from hloscope.hlo.text_scan import (
    MalformedError,
    group_end,
    inner,
    integer,
    integer_lists,
    integers,
    split,
    string,
)

# A mesh is followed by its axes: `mesh['fsdp'=16,'expert'=8], device_ids=([8,16]T(1,0)) {'fsdp'}`.
MESH = re.compile(
    r"(maximal_)?mesh\[([^\[\]]*+)\](?:\s*+,\s*+device_ids=\(((?:[^()]|\([^()]*+\))*+)\))?", re.ASCII
)
_MESH_GROUPS = re.compile(MESH.pattern + r"\s*+\{([^{}]*+)\}", re.ASCII)
_AXIS = re.compile(r"""(?P<quote>["'])([^"']*+)(?P=quote)(?:\s*+:\s*+\((\d{1,18})\)(\d{1,18}))?""", re.ASCII)
_IOTA = re.compile(r"\s*+\[([\d,\s]*+)\](?:<=\[([\d,\s]*+)\](?:T\(([\d,\s]*+)\))?)?", re.ASCII)
_SHARDING_WORD = re.compile(r"\s*+,?\s*+([a-z_]+)(=?)", re.ASCII)
_NUMBER = re.compile(r"\s++\d++\s*+", re.ASCII)
_WORD = re.compile(r"[^\s,]++")
_IOTA_TILES = re.compile(r"\[[\d,\s]*+\]<=\[[\d,\s]*+\](?:T\([\d,\s]*+\))?+", re.ASCII)
_LISTED = re.compile(r"\s*+\d++(?:\s*+,\s*+\d++)*+", re.ASCII)
# XLA's OpSharding.Type.
_TUPLE, _OTHER = 2, 3
_SHARDING_TYPES = {"replicated": 0, "maximal": 1, "manual": 4, "unknown": 5, "unreduced": 6}
# More devices than any machine has.
_MOST_DEVICES = 2**22


def replica_groups(proto: protos.Instruction, text: str) -> None:
    """Set replica groups: `{{0,1},{2,3}}`, `[2,4]<=[4,2]T(1,0)` or mesh axes."""
    if text.startswith("{"):
        # Set even if there are none: `{}` means all devices.
        groups = proto.collective_device_list.replica_groups
        proto.collective_device_list.SetInParent()
        for ids in integer_lists(text):
            groups.add(replica_ids=ids)
        return
    found = _MESH_GROUPS.fullmatch(text)
    if found:
        axes = proto.mesh_axes_replica_group_list
        axes.mesh.CopyFrom(_mesh(found))
        axes.axes.extend(_axes(axes.mesh, found[4]))
        return
    counts, dims, perm = _iota(text)
    if len(counts) != 2 or dims is None:
        raise MalformedError("expected replica groups")
    iota = proto.iota_collective_device_list
    iota.num_replica_groups, iota.num_devices_per_group = counts
    iota.iota_reshape_dims.extend(dims)
    iota.iota_transpose_perm.extend(perm if len(dims) > 1 else [])


def _iota(text: str) -> tuple[list[int], list[int] | None, list[int]]:
    """`[2,4]<=[4,2]T(1,0)` as its three lists; without `<=` the second is None."""
    found = _IOTA.match(text)
    if found is None or text[found.end() :].strip():
        raise MalformedError("expected a list of groups, `[groups,devices]<=[...]` or a mesh")
    counts, dims, perm = found.groups()
    if dims is None:
        return integers(counts), None, []
    sizes = integers(dims)
    return integers(counts), sizes, list(range(len(sizes))) if perm is None else integers(perm)


def _mesh(found: re.Match[str]) -> protos.Mesh:
    mesh = protos.Mesh()
    if found[1]:
        mesh.device_ids.append(integer(found[2].removeprefix("device_id=")))
        return mesh
    for part in split(found[2]):
        name, _, size = part.rpartition("=")
        mesh.axes.add(name=string(name.strip()), size=integer(size))
    if found[3] is not None:
        mesh.device_ids.extend(_device_ids(found[3]))
    return mesh


def _device_ids(text: str) -> list[int]:
    """Device ids as a list, `0,2,1,3`, or as an iota, `[2,2]T(1,0)`."""
    if not text.lstrip().startswith("["):
        return integers(text)
    import numpy as np

    _, dims, perm = _iota("[]<=" + text.strip())
    total = math.prod(dims or ())
    if not dims or not 0 < total <= _MOST_DEVICES or sorted(perm) != list(range(len(dims))):
        raise MalformedError("these device ids do not describe a set of devices")
    return [int(i) for i in np.arange(total).reshape(dims).transpose(perm).reshape(-1)]


def _axes(mesh: protos.Mesh, text: str) -> list[protos.AxisRef]:
    """`'fsdp','expert':(1)4` as references to a mesh's axes, by name or by number."""
    place = {axis.name: i for i, axis in enumerate(mesh.axes)}
    refs: list[protos.AxisRef] = []
    for part in split(text):
        found = _AXIS.fullmatch(part)
        if found is None:
            raise MalformedError("expected the names of mesh axes")
        name, pre, size = found.group(2, 3, 4)
        index = place[name] if name in place else integer(name) if name.isdecimal() else -1
        if not 0 <= index < len(mesh.axes):
            raise MalformedError(f"the mesh has no axis {name!r}")
        ref = protos.AxisRef(mesh_axis_index=index)
        if size is not None:
            ref.sub_axis_info.pre_size, ref.sub_axis_info.size = int(pre), int(size)
        refs.append(ref)
    return refs


def sharding(text: str) -> protos.OpSharding:
    """A sharding: `{replicated}`, `{devices=[2,4]<=[8]}`, `{mesh[...], [...]}`, or a tuple of such."""
    parts = split(inner(text))
    if all(part.startswith("{") for part in parts):
        return protos.OpSharding(type=_TUPLE, tuple_shardings=[_single(inner(part)) for part in parts])
    return _single(inner(text))


def _single(text: str) -> protos.OpSharding:
    text = text.strip()
    named = MESH.match(text)
    if named:
        return protos.OpSharding(named_sharding=_named(named, text[named.end() :]))
    made = protos.OpSharding(type=_OTHER)
    at = 0
    while at < len(text):
        found = _SHARDING_WORD.match(text, at)
        if found is None:
            raise MalformedError("expected a sharding")
        at = _sharding_word(made, found[1], text, found.end()) if found[2] else found.end()
        if found[1] in _SHARDING_TYPES and not found[2]:
            made.type = _SHARDING_TYPES[found[1]]
        elif found[1] == "last_tile_dim_replicate":
            made.replicate_on_last_tile_dim = True
        elif not found[2]:
            at = _number_end(text, at)  # `shard_as 3`, `shard_like 3`: not kept
    return made


def _number_end(text: str, at: int) -> int:
    found = _NUMBER.match(text, at)
    if found is None:
        raise MalformedError("expected a sharding")
    return found.end()


def _sharding_word(made: protos.OpSharding, name: str, text: str, at: int) -> int:
    """One `name=value` of a sharding; the place after it."""
    if text[at : at + 1] in ("{", "["):
        end = group_end(text, at)
        if name == "devices":
            return _devices(made, text, at, end)
        if name == "last_tile_dims":
            made.last_tile_dims.extend(_SHARDING_TYPES.get(t, _OTHER) for t in split(inner(text[at:end])))
        return end
    found = _WORD.match(text, at)
    if found is None:
        raise MalformedError("expected a sharding")
    if name == "device":
        made.tile_assignment_devices.append(integer(found[0]))
    return found.end()


def _devices(made: protos.OpSharding, text: str, at: int, end: int) -> int:
    iota = _IOTA_TILES.match(text, at)
    if iota:
        dims, reshape, perm = _iota(iota[0])
        made.tile_assignment_dimensions.extend(dims)
        made.iota_reshape_dims.extend(reshape or ())
        made.iota_transpose_perm.extend(perm)
        return iota.end()
    made.tile_assignment_dimensions.extend(integers(text[at + 1 : end - 1]))
    listed = _LISTED.match(text, end)
    if listed is None:
        raise MalformedError("expected the devices of a sharding")
    made.tile_assignment_devices.extend(integers(listed[0]))
    return listed.end()


def _named(found: re.Match[str], rest: str) -> protos.NamedSharding:
    """A sharding by mesh axes; `replicated={...}` and the like follow the dimensions in brackets."""
    made = protos.NamedSharding(mesh=_mesh(found))
    for part in split(rest.strip().removeprefix(",")):
        name, _, value = part.partition("=")
        if part.startswith("["):
            for dimension in split(part[1:-1]):
                axes = split(inner(dimension))
                kept = [a for a in axes if a != "?"]
                made.dim_shardings.add(axes=_axes(made.mesh, ",".join(kept)), is_closed=kept == axes)
        elif name == "replicated" and value:
            made.replicated_axes.extend(_axes(made.mesh, inner(value)))
        elif name == "unreduced" and value.endswith("}"):
            made.unreduced_axes.extend(_axes(made.mesh, inner(value[value.index("{") :])))
    return made
