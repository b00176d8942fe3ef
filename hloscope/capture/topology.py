"""A topology to compile for (`cpu:8`, `here`: to run on), by name. jax is imported when devices are asked for."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from hloscope.capture import topology_names
from hloscope.errors import UserError

if TYPE_CHECKING:
    from jax.sharding import Mesh

_CPU = re.compile(r"cpu:([0-9]+)$")
_HERE = "here"


class Device(Protocol):
    """What is used of a `jax.Device`, whose own type jax builds at run time."""

    @property
    def id(self) -> int: ...  # noqa: D102
    @property
    def platform(self) -> str: ...  # noqa: D102
    @property
    def device_kind(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices by name: TPU topologies as libtpu spells them (`tpu7x:4x4x4`), `cpu:8`, eight host devices, or `here`,
    the devices that jax has in this process.

    A TPU topology's devices can be compiled for, not run on; the host's can be run on, to check numbers, and those
    of `here`, TPUs where there are some, to train. Whether libtpu takes a name shows when the devices are asked for:
    `UserError` if not.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"a topology is a name, got {self.name!r}: {topology_names.known_names()}")
        if self.name.startswith("cpu:") and not _host_count(self.name):
            raise UserError(f"unknown topology {self.name!r}: write cpu:8 for eight host devices")

    @property
    def platform(self) -> str:
        """`tpu` or `cpu`; of `here` what jax calls it."""
        if self.name == _HERE:
            return self.devices[0].platform
        return "cpu" if self.name.startswith("cpu:") else "tpu"

    @property
    def chip(self) -> str:
        """The chip's short name: `v4`, `v5e`, `v5p`, `v6e`, `tpu7x`, ...; `cpu` for the host."""
        return topology_names.chip_of(self.devices[0].device_kind if self.name == _HERE else self.name)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device of the topology, by id. v4 has one per chip (megacore), as on real pods."""
        if self.name == _HERE:
            return _own_devices()
        return _host_devices(self.name) if self.platform == "cpu" else _tpu_devices(self.name)

    @property
    def num_devices(self) -> int:
        """How many devices there are: two per chip on v2, v3 and tpu7x, one on the others."""
        return len(self.devices)

    @property
    def coordinates(self) -> list[list[int]] | None:
        """x, y, z of the chip and the core on it, of every device by id; None if the platform does not tell."""
        if [d.id for d in self.devices] != list(range(self.num_devices)):
            return None
        found = [_place(d) for d in self.devices]
        known = [place for place in found if len(place) == 4]
        return known if len(known) == len(found) else None

    @property
    def wraps(self) -> list[bool] | None:
        """Which axes of the slice have their ends joined, as the compiler is told; None if it is not told."""
        return topology_names.wraps(self.name)

    def check(self) -> None:
        """`UserError` if there is no such topology."""
        self.num_devices  # noqa: B018  # asking for the devices is the check

    def mesh(self, **axes: int) -> Mesh:
        """A mesh over all devices with these axis sizes, in the order in which jax lays out such a slice.

        That is the order of `jax.make_mesh`, so that what is compiled here is what a real run compiles. The
        axes are of jax's `Auto` type: the compiler propagates shardings. `UserError` if the sizes do not
        multiply to the number of devices.
        """
        from jax.sharding import AxisType, Mesh

        self._check_axes(axes)
        ordered = _ordered(self.devices, tuple(axes.values()))
        return Mesh(ordered, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def _check_axes(self, axes: dict[str, int]) -> None:
        if not axes:
            raise UserError(f"{self.name}: a mesh needs axes, e.g. topology.mesh(data={self.num_devices})")
        spelled = " x ".join(f"{axis}={size}" for axis, size in axes.items())
        for size in axes.values():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise UserError(f"{self.name}: axis sizes must be positive whole numbers, got {spelled}")
        product = math.prod(axes.values())
        if product != self.num_devices:
            raise UserError(
                f"{self.name}: the mesh {spelled} has {product} places, but the topology has "
                f"{self.num_devices} devices"
            )


def _place(device: Any) -> list[int]:
    """x, y, z and core of a device; fewer numbers where the platform does not tell."""
    numbers: list[object] = [*getattr(device, "coords", ()), getattr(device, "core_on_chip", None)]
    return [n for n in numbers if isinstance(n, int)]


def _ordered(devices: tuple[Device, ...], shape: tuple[int, ...]) -> Any:
    from jax.experimental import mesh_utils

    # Logical axes may cut a physical one in two (fsdp=32 x expert=8 on 16x16): rather that than no mesh.
    return mesh_utils.create_device_mesh(shape, devices=list(devices), allow_split_physical_axes=True)


@lru_cache
def _tpu_devices(name: str) -> tuple[Device, ...]:
    if topology_names.zero_sized(name):
        raise UserError(topology_names.refusal(name, "a dimension is zero"))
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise UserError(f"{name}: the TPU compiler is not installed; pip install 'jax[tpu]'")
    topologies: Any = importlib.import_module("jax.experimental.topologies")
    # jax on a real v4 sees one device per chip; libtpu's default for a description is one per core.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if topology_names.chip_of(name) == "v4" else {}
    # Left alone, libtpu compiles for a mesh without the links that join the ends of a real slice.
    if any(wraps := topology_names.wraps(name) or ()):
        options["wrap"] = wraps
    if bounds := _small_bounds(name):
        options["chips_per_host_bounds"] = bounds
    try:
        description: Any = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
        if "lockfile" in reason:
            raise UserError(
                f"{name}: another process has loaded libtpu; set ALLOW_MULTIPLE_LIBTPU_LOAD=1 in this one"
            ) from error
        if "TPU support not installed" in reason:
            raise UserError("libtpu is not installed; pip install 'jax[tpu]' to compile") from error
        raise UserError(topology_names.refusal(name, reason)) from error
    devices: list[Device] = description.devices
    return tuple(sorted(devices, key=lambda device: device.id))


def _small_bounds(name: str) -> tuple[int, ...] | None:
    """Chips per host of a topology smaller than a 2x2 host: libtpu 0.0.42 wants to be told."""
    found = re.search(r"[:=_]([1-9][0-9]*(?:x[1-9][0-9]*){1,2})$", name)
    if found is None:
        return None
    shape = (*map(int, found[1].split("x")), 1)[:3]
    return shape if math.prod(shape) < 4 else None


def _own_devices() -> tuple[Device, ...]:
    jax: Any = importlib.import_module("jax")
    devices: list[Device] = jax.devices()
    return tuple(sorted(devices, key=lambda device: device.id))


def _host_count(name: str) -> int | None:
    found = _CPU.match(name)
    return int(found[1]) or None if found else None


def _host_devices(name: str) -> tuple[Device, ...]:
    jax: Any = importlib.import_module("jax")
    count = _host_count(name) or 1
    # -1 unless it was set.
    if jax.config.jax_num_cpu_devices < count:
        # Too late to ask for more once jax runs; there may be enough of them all the same.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    devices: list[Device] = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(
            f"{name}: jax has started with {len(devices)} host device(s) already; ask for the topology's "
            f"devices before anything runs, or start with JAX_NUM_CPU_DEVICES={count}"
        )
    return tuple(devices[:count])
