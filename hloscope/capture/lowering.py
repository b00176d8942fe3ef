"""From a `Step` to StableHLO, in the worker, and what the lowered step tells of devices and parameters."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hloscope.capture.step import Step
from hloscope.capture.topology import Device, Topology
from hloscope.errors import UserError

if TYPE_CHECKING:
    import jax

_OWN_FRAME = re.compile(rf'loc\("{re.escape(str(Path(__file__).parents[1]))}/[^"]*":[^)]*\)')


def trace(step: Step, mesh: jax.sharding.Mesh | None) -> Any:
    """The traced step (`jax.stages.Traced`). Compiler options are for whoever compiles it: another platform may refuse
    them."""
    function = dataclasses.replace(step, compiler_options={}).jit()
    return within(mesh, lambda: function.trace(*step.args, **step.kwargs))


def within(mesh: jax.sharding.Mesh | None, action: Callable[[], Any]) -> Any:
    """Do something in the abstract mesh of the topology's devices, where Pallas kernels see a TPU.

    A step that brings another mesh of its own may refuse to be traced there: then it is traced without.
    """
    import jax

    if mesh is None:
        return action()
    try:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return action()
    except ValueError as error:
        if "mesh" not in str(error):
            raise
    return action()


def given_shardings(step: Step) -> list[jax.sharding.Sharding]:
    """The concrete shardings on the step's arguments, and those given to `Step`."""
    import jax

    leaves = jax.tree.leaves((step.args, dict(step.kwargs)))
    found = [getattr(leaf, "sharding", None) for leaf in leaves]
    return _concrete([*found, *jax.tree.leaves((step.in_shardings, step.out_shardings))])


def unplaced(step: Step, most: int = 4) -> list[str]:
    """Arrays among the arguments that nothing places on devices, by path; scalars are left out.

    A `jax.jit` function may place them itself, which cannot be seen before it is lowered: none are told then.
    """
    jax: Any = importlib.import_module("jax")

    if step.is_jitted or step.in_shardings is not None:
        return []
    static = set(cast("tuple[int, ...]", step.static_argnums))
    names = _argument_names(step)
    arguments = {names(i): a for i, a in enumerate(step.args) if i not in static} | dict(step.kwargs)
    found = [
        f"{name}{jax.tree_util.keystr(path)}"
        for name, argument in arguments.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]
        if getattr(leaf, "shape", ()) and getattr(leaf, "sharding", None) is None
    ]
    return found if len(found) <= most else [*found[:most], f"{len(found) - most} more"]


def _argument_names(step: Step) -> Callable[[int], str]:
    try:
        names = list(inspect.signature(step.fn).parameters)
    except (TypeError, ValueError):
        names = []
    return lambda i: names[i] if i < len(names) else f"args[{i}]"


def on_one_device(step: Step, topology: Topology) -> Step:
    """The step with its arguments on the topology's first device: what a kernel alone is compiled for."""
    import jax
    import numpy as np

    axes = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.Mesh(np.array(topology.devices[:1]), ("device",), axis_types=axes)
    here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def placed(leaf: Any) -> Any:
        is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here) if is_shape else leaf

    args, kwargs = jax.tree.map(placed, (tuple(step.args), dict(step.kwargs)))
    return dataclasses.replace(step, args=args, kwargs=kwargs)


def text_of(lowered: Any) -> str:
    """The lowered step, with its places in the user's files, which are the report's later.

    Frames of hloscope's own stand in it without their lines: another version of them compiles to the same.
    """
    return _OWN_FRAME.sub('loc("hloscope")', lowered.as_text(debug_info=True))


def lowered_shardings(lowered: Any) -> list[jax.sharding.Sharding]:
    """The shardings that jax lowered with, which knows those of a `jax.jit` function of the user's.

    jax has no public name for them before the compile; where this attribute should go, the list is empty.
    """
    arguments: dict[str, Any] = getattr(getattr(lowered, "_lowering", None), "compile_args", {})
    names = ("in_shardings", "out_shardings", "intermediate_shardings")
    return _concrete([sharding for name in names for sharding in arguments.get(name) or ()])


def _concrete(values: Sequence[object]) -> list[jax.sharding.Sharding]:
    import jax

    shardings = [value for value in values if isinstance(value, jax.sharding.Sharding)]
    return [s for s in shardings if not isinstance(getattr(s, "mesh", None), jax.sharding.AbstractMesh)]


def find_mesh(shardings: Sequence[jax.sharding.Sharding], platform: str) -> jax.sharding.Mesh | None:
    """The mesh that most shardings are over; None if none of them has one on this platform."""
    import jax

    here = [sharding for sharding in shardings if devices_of(sharding)[0].platform == platform]
    meshes = [sharding.mesh for sharding in here if isinstance(sharding, jax.sharding.NamedSharding)]
    counted = Counter(mesh for mesh in meshes if isinstance(mesh, jax.sharding.Mesh))
    return counted.most_common(1)[0][0] if counted else None


def check_devices(shardings: Sequence[jax.sharding.Sharding], topology: Topology) -> None:
    """`UserError` unless something is placed on the topology: jax would compile for the host otherwise."""
    devices = [device for sharding in shardings for device in devices_of(sharding)]
    kinds = {device.device_kind for device in devices if device.platform == topology.platform}
    own = topology.devices[0].device_kind
    if not kinds:
        raise UserError(
            f"no argument of the step lies on {topology.name}: give its jax.ShapeDtypeStructs a sharding "
            "over the topology's devices, e.g. NamedSharding(topology.mesh(data=N), PartitionSpec('data'))"
        )
    if kinds != {own}:
        raise UserError(
            f"the step lies on {', '.join(sorted(kinds))} devices, but {topology.name} has {own}: "
            "build its mesh from the topology that the function is given"
        )


def devices_of(sharding: jax.sharding.Sharding) -> list[Device]:
    """The devices that a sharding is over."""
    return list(cast("set[Device]", sharding.device_set))  # pyright: ignore[reportUnknownMemberType]


def device_assignment(shardings: Sequence[jax.sharding.Sharding]) -> list[Any]:
    """What decides which device does which part: meshes with axes and device ids, in a stable order."""
    import jax

    found: set[tuple[Any, ...]] = set()
    for sharding in shardings:
        if isinstance(sharding, jax.sharding.NamedSharding) and isinstance(sharding.mesh, jax.sharding.Mesh):
            found.add((tuple(sharding.mesh.shape.items()), tuple(mesh_device_ids(sharding.mesh))))
        else:
            found.add((type(sharding).__name__, tuple(sorted(device.id for device in devices_of(sharding)))))
    return sorted(found, key=repr)


def mesh_device_ids(mesh: jax.sharding.Mesh) -> list[int]:
    """Device ids in row-major mesh order."""
    return [device.id for device in mesh.devices.flat]


def function_name(lowered: Any) -> str:
    """The name of the user's function, which jax calls its module by: `jit_train_step`."""
    return lowered.compiler_ir("stablehlo").operation.attributes["sym_name"].value.removeprefix("jit_")


def parameter_names(lowered: Any) -> list[str]:
    """Argument and pytree path of each parameter of the module, in order: `params['w']`.

    Read off the module itself, since jax leaves arguments out that the step does not use.
    """
    module = lowered.compiler_ir("stablehlo")
    for operation in module.body.operations:
        if "sym_name" in operation.attributes and operation.attributes["sym_name"].value == "main":
            return [argument.location.name_str for argument in operation.regions[0].blocks[0].arguments]
    return []
