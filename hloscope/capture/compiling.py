"""Running the compiler on a lowered step, in the worker, and asking it what it knows."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import operator
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hloscope.capture.artifact import MemoryStats
from hloscope.capture.messages import out_of_memory, to_bytes
from hloscope.capture.topology import Topology

_WRONG_OPTION = re.compile(r"(?:No such compile option|Failed to parse '.*' into flag).*")

# Where jax's name is not ours with `_size_in_bytes` for `_bytes`.
_STATS_NAMES = {
    "peak_bytes": "peak_memory_in_bytes",
    "peak_unpadded_bytes": "peak_unpadded_heap_bytes",
    "total_bytes": "total_allocation_bytes",
    "indefinite_bytes": "indefinite_allocations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compile that worked: how long it took, in seconds, the executable and its memory."""

    seconds: float
    executable: Any
    memory_stats: MemoryStats | None


def compile_step(lowered: Any, options: Mapping[str, Any], dump: Path) -> Compiled:
    """Compile with everything dumped that an artifact is made of. Raises what jax raises when it fails."""
    # The schedule comes as documented text only if text is asked for; the rest of the text is dropped.
    ours = {
        "xla_dump_to": str(dump),
        # The file may set XLA_FLAGS as it is read, which would say what is dumped, and under which names: MaxText's
        # configuration asks for modules of one name only.
        "xla_dump_hlo_module_re": ".*",
        "xla_dump_include_timestamp": False,
        "xla_dump_compress_protos": False,
        "xla_dump_max_hlo_modules": -1,
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_as_text": True,
        "xla_dump_latency_hiding_schedule": True,
    }
    began = time.monotonic()
    compiled = lowered.compile(compiler_options={**options, **ours})
    stats = _memory_stats(compiled.memory_analysis())
    return Compiled(seconds=time.monotonic() - began, executable=compiled, memory_stats=stats)


def _memory_stats(analysis: Any) -> MemoryStats | None:
    if analysis is None:
        return None
    return MemoryStats(**{name: getattr(analysis, theirs, None) for name, theirs in _names().items()})


def stats_by_their_names(stats: MemoryStats | None) -> dict[str, int | None]:
    """What is known of a program's memory, under the names that jax has for it."""
    return {} if stats is None else {theirs: getattr(stats, name) for name, theirs in _names().items()}


def _names() -> dict[str, str]:
    """jax's names of the fields of `MemoryStats`."""
    names = [field.name for field in dataclasses.fields(MemoryStats)]
    return {name: _STATS_NAMES.get(name, name.replace("_bytes", "_size_in_bytes")) for name in names}


def refused_option(error: BaseException) -> str | None:
    """What the compiler says of an option that it does not take; None if the error is another."""
    found = _WRONG_OPTION.search(str(error))
    return None if found is None else found[0].rstrip(" :.")


def hbm_limit(topology: Topology, options: Mapping[str, Any]) -> int | None:
    """Bytes of device memory that a program may have; None if the compiler does not say.

    No interface of jax tells it for devices that are not there. But a program whose one argument is far too
    large fails within milliseconds, before anything is generated, and the compiler says what it had.
    It writes two decimals of a GiB.
    """
    jax: Any = importlib.import_module("jax")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    far_too_large = jax.ShapeDtypeStruct((1 << 20, 1 << 20), "float32", sharding=sharding)
    lowered = jax.jit(operator.neg).lower(far_too_large)
    message = ""
    try:
        lowered.compile(compiler_options=dict(options))
    except RuntimeError as error:
        message = str(error)
    sizes = out_of_memory(message)
    return None if sizes is None else to_bytes(sizes[1])


def peak_bytes() -> int | None:
    """The memory of this machine that the process has taken at most; None where the system does not tell."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@contextlib.contextmanager
def collected_warnings(into: list[str]) -> Any:
    """Keep Python's warnings (donated buffers that were not usable, ...) and still write them to the log."""
    import warnings

    shown = warnings.showwarning

    def keep(message: Any, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
        into.append(f"{category.__name__}: {' '.join(str(message).split())} ({Path(filename).name}:{lineno})")
        shown(message, category, filename, lineno, *rest)

    warnings.showwarning = keep
    try:
        yield
    finally:
        warnings.showwarning = shown
