"""What a dump tells beside a module: the chip and topology it was compiled for, the flags, how the compile ended.

The TPU compiler writes these files with the module when the dump is asked for as text. A file that was taken
out of its folder has nothing beside it, and then nothing is known.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hloscope.capture.dump import changed_flags
from hloscope.capture.topology_names import TWO_DIMENSIONAL

# `out of memory`: the compiler kept the module as it stood when memory ran out. `unfinished`: no code was
# generated; the compile failed for another reason, was ended, or is still going on. None: nothing tells.
Ending = Literal["done", "out of memory", "unfinished"]

_STEM = re.compile(
    r"(?P<stem>(?:\d+\.)?module_\d+\..+?\.)(?P<platform>cpu_|(?:sm_[\d.]+_|gfx\w+_)?gpu_)?"
    r"(?P<stage>after_optimizations|before_optimizations|oom_intermediate_module)\.(?:hlo\.pb|txt|hlo)(?:\.gz)?"
)
# The module as it stood when memory ran out.
_OUT_OF_MEMORY = "oom_intermediate_module"
# libtpu's own names for generations, in its variants; tpu7x has a number in place of a name (0.0.42 and 0.0.50).
_CHIPS = {
    ("JELLYFISH", ""): "v2",
    ("DRAGONFISH", ""): "v3",
    ("PUFFERFISH", ""): "v4",
    ("VIPERFISH", ""): "v5p",
    ("VIPERFISH", "lite"): "v5e",
    ("GHOSTLITE", ""): "v6e",
    ("6acc60406", ""): "tpu7x",
}
_VERSION = re.compile(r"^\s*version: TPU_VERSION_(\w+)$", re.MULTILINE)
_VARIANT = re.compile(r'^\s*variant: "(\w+)"$', re.MULTILINE)
_BOUNDS = re.compile(r"(chips_per_host_bounds|host_bounds) \{\s*x: (\d+)\s+y: (\d+)\s+z: (\d+)\s*\}")
# Records are some tens of kB; of what is larger, packed or not, only the beginning is looked at.
_LARGEST = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What stands beside a dumped module. None is unknown.

    `topology` is libtpu's name of it, `v5e:2x4`. `flags` are those that the compiler marks as not at their
    defaults. `optimized` is False for a module from before the compiler's passes.
    """

    platform: str | None = None
    chip: str | None = None
    topology: str | None = None
    flags: dict[str, str] = field(default_factory=dict[str, str])
    ending: Ending | None = None
    optimized: bool = True


def look_beside(path: Path) -> Beside:
    """What the folder of a dumped module tells of it. `OSError` if the folder cannot be read."""
    named = _STEM.fullmatch(path.name)
    if named is None:
        return Beside(ending="out of memory" if _OUT_OF_MEMORY in path.name else None)
    stem, optimized = named["stem"], named["stage"] != "before_optimizations"
    platform = {"c": "cpu", "s": "gpu", "g": "gpu"}.get((named["platform"] or "")[:1])
    names = {entry.name.removeprefix(stem) for entry in path.parent.iterdir() if entry.name.startswith(stem)}
    if platform is not None:
        return Beside(platform=platform, optimized=optimized)
    chip, topology = _target(_record(path.parent, stem, "target_arguments.txt"))
    return Beside(
        platform=None if chip is None else "tpu",
        chip=chip,
        topology=topology,
        flags=changed_flags(_record(path.parent, stem, "tpu_comp_env.txt")),
        ending=_ending(names),
        optimized=optimized,
    )


def _ending(names: set[str]) -> Ending | None:
    if any(name.startswith(_OUT_OF_MEMORY) for name in names):
        return "out of memory"
    if any(name.startswith(("after_codegen", "transfer_stats")) for name in names):
        return "done"
    # Written before the passes: a folder with it is whole, so that what is missing has not been written.
    return "unfinished" if any(name.startswith("tpu_comp_env") for name in names) else None


def _record(folder: Path, stem: str, name: str) -> str:
    """The text of a file of the compiler's beside the module; empty if it is not there or is none."""
    for path in _there(folder / f"{stem}{name}"):
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                return file.read(_LARGEST).decode(errors="replace")
        except (OSError, EOFError, zlib.error):
            continue
    return ""


def _there(path: Path) -> Iterator[Path]:
    yield from (p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file())


def _target(record: str) -> tuple[str | None, str | None]:
    """Chip and topology of a `target_arguments.txt`."""
    version, variant = _VERSION.search(record), _VARIANT.search(record)
    if version is None:
        return None, None
    chip = _CHIPS.get((version[1], variant[1] if variant else ""))
    bounds = {found[1]: [int(n) for n in found.groups()[1:]] for found in _BOUNDS.finditer(record)}
    if chip is None or len(bounds) < 2:
        return chip, None
    shape = [math.prod(pair) for pair in zip(*bounds.values(), strict=True)]
    if chip in TWO_DIMENSIONAL and shape[2] == 1:
        shape.pop()
    return chip, f"{chip}:{'x'.join(map(str, shape))}"
