"""The JSON report, as `schema.json` documents it. Sizes are bytes, times seconds, the unknown is null."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

from hloscope.analysis.census import Census, Family
from hloscope.analysis.collective_sizes import SizeClass, size_classes
from hloscope.analysis.collectives import Collective
from hloscope.analysis.memory import Buffer, BufferFamily, LivePoint, Memory
from hloscope.analysis.step_kernels import StepKernel
from hloscope.analysis.step_time import GroupTime
from hloscope.analysis.wire import WireCost
from hloscope.fingerprint import op_name_at, phase_at
from hloscope.hlo import Instruction, Shape, SourceFrame
from hloscope.report.baseline import Held
from hloscope.report.budgets import Budget
from hloscope.report.json_time import group_json, time_json
from hloscope.report.model import Ragged, Report, Target
from hloscope.report.overrun import Overrun
from hloscope.rule import Finding

# Raised when a field goes or changes its meaning; a new field does not raise it.
SCHEMA_VERSION = 1


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "target": _target(report.target),
        "memory": _memory(report.memory),
        "counts": _counts(report.census),
        "time": time_json(report.time),
        "census": [_family(f, t) for f, t in zip(report.census.families, report.time.families, strict=True)],
        "collectives": [
            _collective(c, t)
            for c, t in zip(report.collectives.collectives, report.time.collectives, strict=True)
        ],
        "collective_sizes": [_size_class(c) for c in size_classes(report.collectives.collectives)],
        "kernels": [_kernel(k) for k in report.kernels],
        "ragged_buffers": [_ragged(r) for r in report.ragged_buffers],
        "rules": list(report.judged),
        "findings": [_finding(f) for f in report.findings],
        "overrun": None if report.overrun is None else _overrun(report.overrun),
        "suppressed": [
            {"finding": _finding(s.finding), "reason": s.reason}
            for s in (report.held.suppressed if report.held else ())
        ],
        "baseline": None if report.held is None else _held(report.held),
        "budgets": [_budget(b) for b in report.budgets],
    }


def _target(target: Target) -> dict[str, Any]:
    return {
        "source": target.source,
        "hlo_file": target.hlo_file,
        "module": target.module,
        "platform": target.platform,
        "chip": target.chip,
        "devices": target.devices,
        "topology": target.topology,
        "mesh": None if target.mesh is None else dict(target.mesh),
        "instructions": target.instructions,
        "scheduled": target.scheduled,
        "status": target.status,
        "error": target.error,
        "compile_seconds": target.compile_seconds,
        "versions": dict(target.versions),
        "flags": dict(target.flags),
        "compiler_options": _value(target.compiler_options),
        "warnings": list(target.warnings),
        "valid_fraction": target.valid_fraction,
        "valid_fraction_source": target.valid_fraction_source,
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "argument_bytes": memory.argument_bytes,
        "output_bytes": memory.output_bytes,
        "alias_bytes": memory.alias_bytes,
        "temp_bytes": memory.temp_bytes,
        "arena_bytes": memory.arena_bytes,
        "total_bytes": memory.total_bytes,
        "generated_code_bytes": memory.generated_code_bytes,
        "peak_bytes": memory.peak_bytes,
        "peak_instruction": _name(memory.peak_instruction),
        "peak_position": memory.peak_position,
        "fragmentation_bytes": memory.fragmentation_bytes,
        "schedule_length": memory.schedule_length,
        "compiler_peak_bytes": memory.compiler_peak_bytes,
        "hbm_limit_bytes": memory.hbm_limit_bytes,
        "spaces": dict(memory.spaces),
        "disagreements": list(memory.disagreements),
        "live": [_live_point(p) for p in memory.live],
        "families_at_peak": [_buffer_family(f) for f in memory.families_at_peak],
        "buffers_at_peak": [_buffer(b) for b in memory.buffers_at_peak],
        "largest_temporaries": [_buffer(b) for b in memory.largest_temporaries],
    }


def _live_point(point: LivePoint) -> dict[str, Any]:
    return {"position": point.position, "instruction": point.instruction, "bytes": point.bytes}


def _buffer_family(family: BufferFamily) -> dict[str, Any]:
    return {
        "label": family.label,
        "shape": family.shape,
        "phases": list(family.phases),
        "count": family.count,
        "bytes": family.bytes,
        "unpadded_bytes": family.unpadded_bytes,
        "source": _source(family.source),
    }


def _buffer(buffer: Buffer) -> dict[str, Any]:
    return {
        "bytes": buffer.bytes,
        "unpadded_bytes": buffer.unpadded_bytes,
        "shape": None if buffer.shape is None else buffer.shape.short,
        "layout": None if buffer.shape is None or buffer.shape.layout is None else str(buffer.shape.layout),
        "kind": buffer.kind,
        "label": buffer.label,
        "phase": buffer.phase,
        "instruction": _name(buffer.instruction),
        "shape_index": list(buffer.shape_index),
        "op_name": buffer.op_name,
        "source": _source(buffer.source),
        "first": buffer.first,
        "last": buffer.last,
    }


def _counts(census: Census) -> dict[str, Any]:
    return {
        "instructions": census.instruction_count,
        "fusions": census.fusion_count,
        "top_level_fusions": census.top_level_fusion_count,
    }


def _family(family: Family, time: GroupTime) -> dict[str, Any]:
    return {
        "family": family.family,
        "kind": family.kind,
        "phase": family.phase,
        "loop": family.loop,
        "shape": family.shape,
        "count": family.count,
        "executions": family.executions,
        "bytes": family.bytes,
        **group_json(time),
        "thread": family.thread,
        "op_name": family.op_name,
        "source": _source(family.source),
        "instructions": _names(family.instructions),
    }


def _collective(collective: Collective, time: GroupTime) -> dict[str, Any]:
    axes = collective.mesh_axes
    return {
        "opcode": collective.opcode,
        "form": collective.form,
        "shape": collective.shape,
        "operand_shape": collective.operand_shape,
        "dimension": collective.dimension,
        "mesh_axes": None if axes is None else list(axes),
        "group_size": collective.group_size,
        "count": collective.count,
        "executions": collective.executions,
        "bytes": collective.bytes,
        "wire": None if collective.wire is None else _wire(collective.wire),
        "seconds": time.seconds,
        "exposed_seconds": time.step_seconds,
        "offload": collective.offload,
        "asynchronous": collective.asynchronous,
        "phase": collective.phase,
        "op_name": collective.op_name,
        "source": _source(collective.source),
        "instructions": _names(collective.instructions),
    }


def _wire(wire: WireCost) -> dict[str, Any]:
    return {
        "bytes": wire.bytes,
        "seconds": wire.seconds,
        "latency_seconds": wire.latency_seconds,
        "transfer_seconds": wire.transfer_seconds,
        "bound_by": wire.bound_by,
        "algorithm": wire.algorithm,
        "links": wire.links,
        "hops": wire.hops,
        "wraparound": wire.wraps,
        "source_of_figure": wire.source,
    }


def _size_class(found: SizeClass) -> dict[str, Any]:
    return {
        "opcode": found.opcode,
        "from_bytes": found.from_bytes,
        "to_bytes": found.to_bytes,
        "count": found.count,
        "executions": found.executions,
        "bytes": found.bytes,
        "seconds": found.seconds,
        "latency_seconds": found.latency_seconds,
    }


def _kernel(kernel: StepKernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "phase": kernel.phase,
        "shape": kernel.shape,
        "count": kernel.count,
        "executions": kernel.executions,
        "bytes": kernel.bytes,
        "seconds": kernel.seconds,
        "limit": kernel.limit,
        "source_of_figure": kernel.source_of_figure,
        "source": _source(kernel.source),
        "instructions": _names(kernel.instructions),
    }


def _ragged(ragged: Ragged) -> dict[str, Any]:
    buffer, valid = ragged.buffer, ragged.valid
    return {
        "rows": buffer.rows,
        "groups": buffer.groups,
        "grouped_matmuls": _names(g.instruction for g in buffer.matmuls),
        "full_buffer_instructions": _names(w.instruction for w in buffer.work),
        "valid_fraction": valid.fraction,
        "valid_fraction_source": valid.source,
        "reason": valid.reason,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "title": finding.title,
        "instructions": _names(finding.instructions),
        "places": finding.places,
        "phase": phase_at(finding),
        "op_name": op_name_at(finding),
        "source": _source(finding.source),
        "executions": finding.executions,
        "bytes": finding.bytes,
        "saved_bytes": finding.saved_bytes,
        "saved_seconds": finding.saved_seconds,
        "held_bytes": finding.held_bytes,
        "fix": finding.fix,
        "advice": finding.advice,
        "details": list(finding.details),
        "facts": _value(finding.facts),
        "fingerprint": finding.fingerprint,
    }


def _overrun(over: Overrun) -> dict[str, Any]:
    return {
        "used_bytes": over.used_bytes,
        "limit_bytes": over.limit_bytes,
        "excess_bytes": over.excess_bytes,
        "findings": [
            {"code": n.finding.code, "fingerprint": n.finding.fingerprint, "peak_bytes": n.peak_bytes}
            for n in over.named
        ],
    }


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "name": budget.name,
        "unit": budget.unit,
        "limit": budget.limit,
        "actual": budget.actual,
        "exceeded": budget.exceeded,
        "note": budget.note or None,
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "file": held.path,
        "step": held.step.name,
        "topology": held.step.topology or None,
        "stale": [
            {"fingerprint": e.fingerprint, "code": e.code, "title": e.title, "reason": e.reason}
            for e in held.stale
        ],
    }


def _name(instruction: Instruction | None) -> str | None:
    return None if instruction is None else instruction.name


def _names(instructions: Iterable[Instruction]) -> list[str]:
    return [i.name for i in instructions]


def _source(frame: SourceFrame | None) -> str | None:
    return None if frame is None else str(frame)


def _value(value: object) -> Any:
    """A rule's or a user's own figure as a JSON value; what JSON has no word for becomes text."""
    if isinstance(value, Enum):
        return _value(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _value(v) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(v) for v in cast("Iterable[object]", value)]
    return _word(value)


def _word(value: object) -> Any:
    if isinstance(value, Instruction):
        return value.name
    if isinstance(value, Shape):
        return value.short
    if isinstance(value, SourceFrame | PurePath):
        return str(value)
    # numpy's scalars and arrays, without importing numpy.
    to_list = getattr(value, "tolist", None)
    return _value(to_list()) if callable(to_list) else str(value)
