"""From a call on host devices to the same step for a topology, in the worker.

`jax.export` lowers the function for the TPU with everything that it closes over, its meshes by axis names and
sizes alone, and gives back its shardings over another mesh: the topology's.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.capture.script import Call
from hloscope.capture.topology import Topology
from hloscope.errors import UserError

_MESH = re.compile(r"sdy\.mesh @\w+ = <\[(?P<axes>[^\]]+)\]")
_AXIS = re.compile(r'"(?P<name>[^"]+)"=(?P<size>\d+)')
_HOST_CALL = re.compile(r"\b(debug_print|\w+_callback)\[")
_LEAF = re.compile(r"leaves\[(\d+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A call on its way to the topology: a jitted function of flat arguments, and what names those.

    `placed` is False where the devices are named inside the function alone, by a shard_map.
    """

    jitted: Any
    leaves: list[Any]
    shardings: list[Any]
    names: list[str]
    mesh: Any
    placed: bool = True

    def lower(self) -> Any:
        """As `jax.stages.Wrapped.lower`, in the topology's mesh where the script has set one of its own, or where
        nothing else says which devices."""
        jax: Any = importlib.import_module("jax")
        ours = self.mesh is not None and not (self.placed and jax.sharding.get_abstract_mesh().empty)
        with jax.set_mesh(self.mesh) if ours else without_mesh():
            return self.jitted.lower(*self.leaves)

    def parameter_names(self, found: Sequence[str]) -> list[str]:
        """The names of a module's parameters, by argument and pytree path as the user's function has them."""
        places = (_LEAF.fullmatch(name) for name in found)
        return [self.names[int(p[1])] if p else name for p, name in zip(places, found, strict=True)]


def without_mesh() -> Any:
    """The context in which no mesh is set, whatever the script has set: what is compiled here lies elsewhere."""
    jax: Any = importlib.import_module("jax")
    numpy: Any = importlib.import_module("numpy")
    return jax.set_mesh(jax.sharding.Mesh(numpy.empty((), dtype=object), ()))


def move(call: Call, topology: Topology) -> Moved:
    """The call, for the topology's devices. `UserError` if the mesh does not fit, or jax cannot export it."""
    jax: Any = importlib.import_module("jax")
    exported = _export(call)
    given = [leaf.sharding for leaf in jax.tree.leaves((call.args, call.kwargs)) if hasattr(leaf, "sharding")]
    mesh = _mesh(exported, given, call, topology)
    if mesh is None:
        one = jax.sharding.SingleDeviceSharding(topology.devices[0])
        ins, outs = [one] * len(exported.in_avals), None
    else:
        ins = list(exported.in_shardings_jax(mesh))
        outs = jax.tree.unflatten(exported.out_tree, exported.out_shardings_jax(mesh))

    def flat(*leaves: Any) -> Any:
        args, kwargs = jax.tree.unflatten(exported.in_tree, leaves)
        return exported.call(*args, **kwargs)

    flat.__name__ = call.name
    placed = any(s is not None for s in (*ins, *jax.tree.leaves(outs)))
    infos = jax.tree.leaves(call.jitted.trace(*call.args, **call.kwargs).args_info)
    donated = tuple(i for i, info in enumerate(infos) if info.donated)
    avals = zip(exported.in_avals, ins, strict=True)
    return Moved(
        jitted=jax.jit(flat, donate_argnums=donated, out_shardings=outs),
        leaves=[jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in avals],
        shardings=[s for s in ins if s is not None]
        or ([] if mesh is None else [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())]),
        names=_names(call, exported.in_tree),
        mesh=mesh,
        placed=placed,
    )


def _export(call: Call) -> Any:
    export: Any = importlib.import_module("jax.export")
    try:
        return export.export(call.jitted, platforms=("tpu",))(*call.args, **call.kwargs)
    except (NotImplementedError, ValueError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        cure = "write a step file with @hs.step"
        if calls := _host_calls(call):
            why, cure = f"it calls back to the host: {', '.join(calls)}", f"leave that out, or {cure}"
        raise UserError(
            f"{call.name} cannot be moved to TPUs as it is called here ({why}): {cure}"
        ) from error


def _host_calls(call: Call) -> list[str]:
    """What in the function, loops and all, runs Python on the host: jax words their refusal as one of platforms."""
    text = str(call.jitted.trace(*call.args, **call.kwargs).jaxpr)
    return list(dict.fromkeys(_HOST_CALL.findall(text)))


def _mesh(exported: Any, given: Sequence[Any], call: Call, topology: Topology) -> Any:
    """The script's mesh over the topology's devices; None for a program of one device."""
    if exported.nr_devices == 1:
        return None
    own = [
        s.mesh
        for s in given
        if hasattr(s, "mesh") and math.prod(s.mesh.shape.values()) == exported.nr_devices
    ]
    axes: Mapping[str, int] | None = dict(own[0].shape) if own else _named(exported)
    if axes is None:
        raise UserError(
            f"{call.name} runs on {exported.nr_devices} devices without a mesh: give it a jax.sharding.Mesh"
        )
    if exported.nr_devices != topology.num_devices:
        spelled = " x ".join(f"{axis}={size}" for axis, size in axes.items())
        raise UserError(
            f"the script's mesh {spelled} has {exported.nr_devices} places, but {topology.name} has "
            f"{topology.num_devices} devices: make the mesh of jax.device_count(), or choose another topology"
        )
    mesh = topology.mesh(**axes)
    if not own:
        return mesh
    jax: Any = importlib.import_module("jax")
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=own[0].axis_types)


def _named(exported: Any) -> dict[str, int] | None:
    """Axis names and sizes of the mesh that the exported module names."""
    for found in _MESH.finditer(exported.mlir_module()):
        axes = {axis["name"]: int(axis["size"]) for axis in _AXIS.finditer(found["axes"])}
        if math.prod(axes.values()) == exported.nr_devices:
            return axes
    return None


def _names(call: Call, in_tree: Any) -> list[str]:
    """`params['w']` for each leaf of the arguments that are arrays."""
    jax: Any = importlib.import_module("jax")
    numbered = jax.tree.unflatten(in_tree, range(in_tree.num_leaves))
    paths: Sequence[Any] = jax.tree_util.tree_flatten_with_path(numbered)[0]
    try:
        known = [p.name for p in inspect.signature(call.jitted).parameters.values()]
    except (TypeError, ValueError):
        known = []
    dynamic = _dynamic(call, known)
    return [_spelled(path, dynamic) for path, _ in paths]


def _dynamic(call: Call, known: Sequence[str]) -> list[str]:
    """Names of the positional arguments that are no static ones: the tree has no place for those."""
    jax: Any = importlib.import_module("jax")
    infos = call.jitted.trace(*call.args, **call.kwargs).args_info[0]
    if len(infos) == len(call.args):
        return list(known)
    arrays = [
        bool(jax.tree.leaves(a)) and all(hasattr(x, "dtype") for x in jax.tree.leaves(a)) for a in call.args
    ]
    return [name for name, array in zip(known, arrays, strict=False) if array]


def _spelled(path: Sequence[Any], names: Sequence[str]) -> str:
    jax: Any = importlib.import_module("jax")
    kind, key, *rest = path
    tail = jax.tree_util.keystr(tuple(rest))
    if kind.idx == 1:
        return f"{key.key}{tail}"
    return f"{names[key.idx] if key.idx < len(names) else f'args[{key.idx}]'}{tail}"
