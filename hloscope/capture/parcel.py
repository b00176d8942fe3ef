"""A step that lives in this process (a notebook's cell, a running script), packed for the worker and unpacked there.

Functions of `__main__` travel by value, others by name; meshes and devices as what they are for: a mesh of host
devices becomes the topology's mesh with the same axes. Only the worker loads what was packed, in its own folder.
"""

from __future__ import annotations

import importlib
import io
import operator
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hloscope.capture.script import shaped
from hloscope.capture.step import Step, StepSpec, step_spec
from hloscope.capture.topology import Topology
from hloscope.errors import UserError

PARCEL = "parcel.pickle"

_OPTIONS = (
    "static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused", "inline",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A packed step: its name, the file of its code, the topology that it names, and the pickled rest."""

    name: str
    file: str
    topology: str | None
    data: bytes


def pack(step: Step | Callable[..., Step]) -> Parcel:
    """Pack an `hs.Step`, or a builder marked `@hs.step`. UserError, with the reason, if something cannot travel."""
    if find_spec("cloudpickle") is None:
        raise UserError("hs.analyze needs cloudpickle, which is not installed: pip install 'hloscope[tpu]'")
    spec = step_spec(step)
    if spec is None and not isinstance(step, Step):
        raise UserError(
            "hs.analyze takes a function and its arguments, an hs.Step, or a function marked @hs.step"
        )
    if isinstance(step, Step):
        step = _without_values(step)
    function = _unwrapped(step.fn if isinstance(step, Step) else step)
    name = spec.name if spec else str(getattr(function, "__name__", type(function).__name__))
    data = io.BytesIO()
    pickle.dump(list(sys.path), data)
    try:
        _pickler(data).dump({"step": step, "name": name})
    except UserError:
        raise
    # Whatever an object of the user's raises as it is pickled.
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name} holds something that cannot be sent to the compile worker ({why}): make it within the "
            "function, or put the step into a file and load that, hs.load('train_step.py')"
        ) from error
    code = getattr(function, "__code__", None)
    file = "" if code is None else str(code.co_filename)
    return Parcel(
        name=name, file=file or "<unknown>", topology=spec.topology if spec else None, data=data.getvalue()
    )


def _without_values(step: Step) -> Step:
    """The step with shapes in place of arrays: values may be large, and nothing here runs."""
    jax: Any = importlib.import_module("jax")
    args, kwargs = jax.tree.map(shaped, (tuple(step.args), dict(step.kwargs)))
    return replace(step, args=args, kwargs=kwargs)


def unpack(path: Path, topology: Topology) -> tuple[StepSpec, Callable[..., Step]]:
    """The packed step as a builder, its meshes over the topology's devices. UserError if those do not fit."""
    with path.open("rb") as file:
        known = cast("list[str]", pickle.load(file))
        sys.path[:] = [*known, *(p for p in sys.path if p not in known)]
        content = _Unpickler(file, topology).load()
    step = content["step"]
    if spec := step_spec(step):
        return spec, step

    def built(_: Topology) -> Step:
        return step

    return StepSpec(name=content["name"], topology=topology.name), built


def has_shardings(function: Any) -> bool:
    """Whether a `jax.jit` function places arguments or results itself."""
    info = getattr(function, "_jit_info", None)
    leaves = (*info.in_shardings_leaves, *info.out_shardings_leaves) if info is not None else ()
    return any(hasattr(leaf, "device_set") for leaf in leaves)


def _unwrapped(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _pickler(file: io.BytesIO) -> Any:
    """cloudpickle's pickler, which knows jax's own objects too."""
    jax: Any = importlib.import_module("jax")
    cloudpickle: Any = importlib.import_module("cloudpickle")
    made: Any = jax.jit(len)
    jitted: Any = made.__class__
    derived = (jax.custom_vjp, jax.custom_jvp)
    base: Any = cloudpickle.Pickler

    class Pickler(base):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, jax.sharding.Mesh):
                kinds, devices = tuple(obj.axis_types), [_device_id(d) for d in obj.devices.flat]
                return ("mesh", tuple(obj.shape.items()), kinds, devices)
            return ("device", _device_id(obj)) if isinstance(obj, jax.Device) else None

        def reducer_override(self, obj: Any) -> Any:
            if (place := _place(obj)) is not None:
                return _named, place
            if type(obj) is jitted:
                return _jitted, (obj.__wrapped__, _jit_options(obj))
            if isinstance(obj, derived):
                return _empty, (type(obj),), vars(obj), None, None, _fill
            return base.reducer_override(self, obj)

    return Pickler(file)


def _device_id(device: Any) -> tuple[str, str, int]:
    return device.platform, device.device_kind, device.id


def _place(value: Any) -> tuple[str, str] | None:
    """Module and name of an object of jax's own types that a module has: a jitted function, a cache; else None."""
    if not type(value).__module__.startswith("jax"):
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if (
        type(value).__name__ == "WeakrefLRUCache"
    ):  # what jax's own functions are remembered in; it has no name
        return next(_holders(value), None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (KeyError, AttributeError):
        return None
    return (module, name) if found is value else None


def _holders(value: object) -> Iterator[tuple[str, str]]:
    for module in [name for name in sys.modules if name.startswith("jax.")]:
        found: dict[str, object] = getattr(sys.modules[module], "__dict__", {})
        yield from ((module, name) for name, other in found.items() if other is value)


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def _jit_options(function: Any) -> dict[str, Any]:
    """What `jax.jit` was told, so that it can be told again; on which host device to run left out."""
    jax: Any = importlib.import_module("jax")
    info = function._jit_info
    if any(leaf is not None for leaf in (*info.in_layouts_leaves, *info.out_layouts_leaves)):
        raise UserError(
            f"{function.__name__} asks for layouts (jax.jit with Format): put the step into a file"
        )
    given: dict[str, Any] = {name: getattr(info, name) for name in _OPTIONS}
    for kind in ("in_shardings", "out_shardings"):
        leaves = getattr(info, f"{kind}_leaves")
        if any(leaf is None or hasattr(leaf, "device_set") for leaf in leaves):
            given[kind] = jax.tree.unflatten(getattr(info, f"{kind}_treedef"), leaves)
    if info.compiler_options_kvs:
        given["compiler_options"] = dict(info.compiler_options_kvs)
    return given


def _jitted(function: Any, options: Mapping[str, Any]) -> Any:
    jax: Any = importlib.import_module("jax")
    return jax.jit(function, **options)


def _empty(kind: type[object]) -> object:
    return object.__new__(kind)


def _fill(value: object, fields: Mapping[str, Any]) -> None:
    # Not by setattr: these objects hand what they lack on to a function that is not there yet.
    object.__getattribute__(value, "__dict__").update(fields)


class _Unpickler(pickle.Unpickler):
    """Puts what lay on the host, or on a topology described there, on the devices of the worker's topology."""

    def __init__(self, file: Any, topology: Topology) -> None:
        super().__init__(file)
        self._topology = topology

    def persistent_load(self, pid: Any) -> Any:
        what, *more = pid
        return self._device(*more) if what == "device" else self._mesh(*more)

    def _device(self, device: tuple[str, str, int]) -> Any:
        platform, kind, number = device
        own = self._topology.devices
        if platform != "cpu" and kind != own[0].device_kind:
            raise UserError(
                f"the step lies on {kind} devices, but {self._topology.name} has {own[0].device_kind}: "
                "build its mesh from the topology that it is compiled for"
            )
        if number >= len(own):
            raise UserError(
                f"the step uses device {number}, but {self._topology.name} has {len(own)} devices: make its "
                "mesh of as many, or choose another topology"
            )
        return own[number]

    def _mesh(
        self, axes: tuple[tuple[str, int], ...], kinds: Any, devices: list[tuple[str, str, int]]
    ) -> Any:
        jax: Any = importlib.import_module("jax")
        numpy: Any = importlib.import_module("numpy")
        names, sizes = [name for name, _ in axes], [size for _, size in axes]
        if devices[0][0] == "cpu" and len(devices) > 1:
            # In the order in which jax lays out a slice: host devices have none.
            placed = self._topology.mesh(**dict(axes)).devices
        else:
            placed = numpy.array([self._device(d) for d in devices], dtype=object).reshape(sizes)
        return jax.sharding.Mesh(placed, names, axis_types=kinds)
