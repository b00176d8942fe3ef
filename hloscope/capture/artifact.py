"""What a capture leaves: a folder with the compiler's own files, and a manifest that says what they are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from hloscope.capture.fields import check_fields
from hloscope.errors import UserError

MANIFEST = "artifact.json"
# Raised whenever a field changes its meaning; artifacts of another format are compiled again.
FORMAT = 1
HLO_FILE = "after_optimizations.hlo.pb"
BEFORE_FILE = "before_optimizations.hlo.pb.gz"
SCHEDULE_FILE = "schedule.txt.gz"
KERNELS_FILE = "kernels.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """`compiled.memory_analysis()`, bytes per device; None for what this version of jax does not tell.

    `temp_bytes` is the compiler's `temp_size_in_bytes`, which people quote; `peak_bytes` its
    `peak_memory_in_bytes`; `total_bytes` and `indefinite_bytes` are `total_allocation_bytes` and
    `indefinite_allocations` (jax 0.12). `host_*` count memory on the host.
    """

    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None
    generated_code_bytes: int | None = None
    peak_bytes: int | None = None
    peak_unpadded_bytes: int | None = None
    total_bytes: int | None = None
    indefinite_bytes: int | None = None
    host_argument_bytes: int | None = None
    host_output_bytes: int | None = None
    host_alias_bytes: int | None = None
    host_temp_bytes: int | None = None
    host_generated_code_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One compiled step on disk.

    `hlo_path` is the optimized module, an HloProto with buffer assignment. `schedule_path` is the latency
    hiding scheduler's text, gzip, there only if the module has asynchronous operations. `before_hlo_path` is
    the module before optimizations, an HloProto, gzip. `kernels_path` holds grids and machine code of the step's
    kernels (see `capture.kernels`), there only if they were asked for.

    `mesh_axes` and `mesh_device_ids` describe the mesh found in the shardings: axis sizes in mesh order, and
    device ids in row-major mesh order. `device_coordinates` are x, y, z and core of the topology's devices by id,
    as libtpu gives them, `wraps` the axes whose ends are joined; None if not known. `hbm_limit_bytes` is the
    device memory that the compiler lets a
    program have, to the 0.01 GiB that it prints. `flags` are the compiler's flags that are not at their
    defaults (see `dump.user_flags`). `parameter_names` name the module's entry parameters in order, by
    argument and pytree path, `params['w']`; an argument that the step does not use is no parameter.
    `plan` holds the fields of the plan that was applied to the step, None without one. `compile_seconds` is the
    compiler's time alone, `worker_peak_bytes` the memory of this machine that the worker took at most. `status` is
    `failed` for what a failed compile left, with what went wrong in `error` and the end of the worker's log in
    `log_tail`; `is_final` if the compiler itself said so, as it would again, and did not just die.
    """

    path: Path
    hlo_path: Path
    schedule_path: Path | None = None
    before_hlo_path: Path | None = None
    kernels_path: Path | None = None
    module_name: str
    step_name: str
    source_file: str
    topology: str
    platform: str
    chip: str
    num_devices: int
    mesh_axes: dict[str, int] | None = None
    mesh_device_ids: list[int] | None = None
    device_coordinates: list[list[int]] | None = None
    wraps: list[bool] | None = None
    memory_stats: MemoryStats | None = None
    hbm_limit_bytes: int | None = None
    versions: dict[str, str | None]
    flags: dict[str, str]
    compiler_options: dict[str, bool | int | float | str]
    valid_fraction: float | None = None
    parameter_names: list[str]
    warnings: list[str]
    plan: dict[str, Any] | None = None
    compile_seconds: float | None = None
    worker_peak_bytes: int | None = None
    created: str
    key: str
    status: Literal["ok", "failed"] = "ok"
    error: str | None = None
    log_tail: str = ""
    is_final: bool = False

    @classmethod
    def load(cls, path: Path) -> Artifact:
        """Read an artifact folder, or one that a failed compile left. `UserError` if it is none."""
        try:
            return read_artifact(path)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is no artifact of hloscope: {error}") from error


_PATHS = ("hlo_path", "schedule_path", "before_hlo_path", "kernels_path")


def write_artifact(artifact: Artifact, files: Mapping[str, object]) -> None:
    """Write the manifest into the artifact's folder; `files` is kept beside it for checks."""
    (artifact.path / MANIFEST).write_text(
        json.dumps({"format": FORMAT, "files": files, "artifact": to_fields(artifact)}, indent=1)
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of an artifact folder as it lies there. `ValueError` if it is not one of this format."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or cast("dict[str, Any]", manifest).get("format") != FORMAT:
        raise ValueError("its manifest has another format")
    return cast("dict[str, Any]", manifest)


def read_artifact(path: Path) -> Artifact:
    """Read an artifact without checking its files. `OSError` or `ValueError` if the manifest is not right."""
    return from_fields(path, read_manifest(path).get("artifact"))


def to_fields(artifact: Artifact) -> dict[str, Any]:
    """The artifact as JSON values; paths as names inside its folder."""
    fields = dataclasses.asdict(artifact)
    del fields["path"]
    return fields | {name: fields[name] and Path(fields[name]).name for name in _PATHS}


def from_fields(path: Path, fields: object) -> Artifact:
    """The reverse of `to_fields`. `ValueError` if fields are missing or unknown."""
    if not isinstance(fields, dict):
        raise ValueError("its manifest has no fields")
    values = cast("dict[str, Any]", fields)
    stats = values.get("memory_stats")
    try:
        located: dict[str, Any] = {name: _inside(path, values.get(name)) for name in _PATHS}
        located["memory_stats"] = None if stats is None else MemoryStats(**stats)
        artifact = Artifact(path=path, **(values | located))
    except (KeyError, TypeError) as error:
        raise ValueError(f"its manifest does not fit: {error}") from error
    check_fields(Artifact, values | located)
    if artifact.memory_stats is not None:
        check_fields(MemoryStats, dataclasses.asdict(artifact.memory_stats))
    _check_figures(artifact)
    return artifact


def _inside(path: Path, name: object) -> Path | None:
    """A file of the artifact's folder, never one elsewhere."""
    if not name:
        return None
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"its files must lie in its folder, not in {name!r}")
    return path / name


def _check_figures(artifact: Artifact) -> None:
    mesh, ids = artifact.mesh_axes, artifact.mesh_device_ids
    share = artifact.valid_fraction
    wrong = ids is not None and math.prod((mesh or {}).values()) != len(ids)
    if wrong or (mesh is not None and min(mesh.values(), default=1) < 1):
        raise ValueError("its mesh and its device ids do not fit")
    if artifact.num_devices < 1 or min(artifact.hbm_limit_bytes or 0, artifact.worker_peak_bytes or 0) < 0:
        raise ValueError("its figures cannot be below zero")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"its valid_fraction cannot be {share}")
