"""HS201: a value is transposed in memory so that its reduce-scatter can split the outermost dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.layout import LayoutChange, layout_changes, major_dimension
from hloscope.analysis.place import phase_of, provenance
from hloscope.analysis.sums import times, total
from hloscope.analysis.uses import standing
from hloscope.hlo import Instruction, async_operation
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import over_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    scatter: Instruction  # as it stands in the step: a start where it is asynchronous
    value: Instruction  # what is scattered, before any layout change
    changes: tuple[LayoutChange, ...]


@rule(code="HS201", name="transposed-reduce-scatter", severity=Severity.WARNING)
def transposed_reduce_scatter(analyses: Analyses) -> Iterable[Finding]:
    """A gradient is transposed in memory so that its reduce-scatter splits the outermost dimension.

    ## What it does
    Follows the operand of every reduce-scatter (the opcode, on the SparseCore or not, and the fusion of an
    all-reduce with a slice) back to what computes it, and reports it where a copy, a transpose or a data-format
    call on the way makes another dimension the outermost one, the one that is scattered.

    ## Why is this bad
    The copy reads and writes the whole unreduced gradient, and its result is alive beside the gradient. Measured
    elsewhere on such a step: 12.9 ms a call against 4.2 ms for the same bytes without the transpose. It ends
    every backward iteration of a layer, where nothing hides it.

    ## Example
    ```hlo
    add {
      a = bf16[] parameter(0)
      b = bf16[] parameter(1)
      ROOT sum = bf16[] add(a, b)
    }
    offsets = s32[65] parameter(0)
    x = bf16[65536,1024] parameter(1)
    dy = bf16[65536,4096] parameter(2)
    grad = bf16[64,1024,4096]{2,1,0} custom-call(offsets, x, dy), custom_call_target="tpu_custom_call"
    copy = bf16[64,1024,4096]{1,0,2} copy(grad)
    flat = bf16[4096,65536]{1,0} bitcast(copy)
    ROOT rs = bf16[128,65536]{1,0} reduce-scatter(flat), replica_groups=[1,32]<=[32], dimensions={0}, to_apply=add  // expect: HS201
    ```

    ## What to do
    Shard another dimension of the parameter over the same mesh axis, e.g. the mlp dimension of `wo` in place of
    its embed dimension (rule sets with names of their own for it, such as `mlp_moe_out` and `embed_moe_out`, allow
    that). Which choice is the better one depends on shape, chip and compiler: compile both and compare.

    ## Fix safety
    The command `apply-rules` compiles the other shardings and keeps one that helps. It computes the same sums; devices
    may add them in another order, so the last bit of a gradient may differ.
    """  # noqa: E501 - HLO has one instruction a line
    sites: dict[tuple[str, str, str], list[_Site]] = {}
    owners: dict[int, Collective] = {}
    for collective in analyses.collectives.collectives:
        if collective.opcode != "reduce-scatter":
            continue
        for site in _sites(collective):
            owners[site.scatter.id] = collective
            key = (collective.shape, site.value.shape.short, phase_of(site.value).value)
            sites.setdefault(key, []).append(site)
    for found in sites.values():
        yield _finding(analyses, owners[found[0].scatter.id], found)


def _sites(collective: Collective) -> Iterator[_Site]:
    for instruction in collective.instructions:
        scatter = standing(instruction)
        operands = (
            async_operation(scatter).operands if scatter.opcode.endswith("-start") else scatter.operands
        )
        if not operands:
            continue
        value, changes = layout_changes(operands[0])
        if any(c.changes_major for c in changes) and _scatters_major(collective, operands[0]):
            yield _Site(scatter=scatter, value=value, changes=changes)


def _mover(change: Instruction) -> Instruction:
    """What does a layout change: the work behind an asynchronous start."""
    return async_operation(change).work if change.opcode.endswith("-start") else change


def _scatters_major(collective: Collective, operand: Instruction) -> bool:
    return collective.dimension is not None and major_dimension(operand.shape) == collective.dimension


def _finding(analyses: Analyses, collective: Collective, sites: list[_Site]) -> Finding:
    module = analyses.module
    first = sites[0]
    runs = [module.executions(s.scatter.computation) for s in sites]
    moved = total(
        None if n is None else n * sum(c.bytes for c in s.changes) for s, n in zip(sites, runs, strict=True)
    )
    once = sum(c.bytes for c in first.changes)
    chain = " → ".join(f"%{c.instruction.name} {c.after}" for c in reversed(first.changes))
    named = provenance(first.value)
    return Finding(
        code="HS201",
        severity=Severity.WARNING,
        title=f"{first.value.shape.short} transposed for its reduce-scatter to {collective.shape}"
        f"{over_axes(collective)}",
        instructions=tuple(
            i for s in sites for i in (s.value, *(c.instruction for c in reversed(s.changes)), s.scatter)
        ),
        places=len(sites),
        source=named.source,
        executions=total(runs),
        bytes=moved,
        saved_bytes=moved,
        saved_seconds=total(
            times(n, analyses.costs.of(_mover(c.instruction)).seconds)
            for s, n in zip(sites, runs, strict=True)
            for c in s.changes
        ),
        fix="safe",
        advice="shard another dimension of this parameter over the same axis, compile, and compare",
        details=(
            f"%{first.value.name} → {chain} → reduce-scatter dimension {collective.dimension}",
            f"the layout change moves {size(once)} each time, and its result takes"
            f" {size(first.changes[0].after.padded_bytes)}; another sharding may need none",
        ),
        facts={
            "values": [s.value.name for s in sites],
            "shape": first.value.shape.short,
            "mesh_axes": list(collective.mesh_axes) if collective.mesh_axes else None,
            "copy_bytes": once,
        },
    )
