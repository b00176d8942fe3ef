"""HS504: expensive work is done again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.attention import is_attention
from hloscope.analysis.bundle import Analyses
from hloscope.analysis.fusion_use import made_bytes
from hloscope.analysis.grouped import recognise
from hloscope.analysis.matmuls import is_matmul, kernel_name
from hloscope.analysis.place import Phase, phase_of
from hloscope.analysis.sums import times, total
from hloscope.analysis.traffic import hbm_bytes
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import share, size
from hloscope_rules._family import Site, fold

# Above this part of a device's memory nothing more should be saved.
_ROOM = 0.9


@rule(code="HS504", name="recomputed-work", severity=Severity.INFO)
def recomputed_work(analyses: Analyses) -> Iterable[Finding]:
    """Attention, grouped matmuls or other matmuls run again in the backward pass, as their results were not saved.

    ## What it does
    Finds attention kernels (custom calls of queries, keys and values that fit each other), grouped matmuls and matmuls
    that run under a checkpoint's recomputation, and tells what saving their results would hold in memory: the bytes of
    what a run makes (of a stack that it updates in place, its part) times how often they run. A remark; a warning for attention where the memory of the device is known to have
    room for it.

    ## Why is this bad
    Recomputation trades time for memory. Attention is the worst trade: its time grows with the square of the sequence,
    the result to save (output and row sums) only with the sequence. It is recomputed where the checkpoint policy does
    not list it.

    ## Example
    ```hlo
    q = bf16[8,2048,128] parameter(0)
    k = bf16[8,2048,128] parameter(1)
    v = bf16[8,2048,128] parameter(2)
    ROOT o = bf16[8,2048,128] custom-call(q, k, v), custom_call_target="tpu_custom_call", metadata={op_name="jit(f)/transpose(jvp())/rematted_computation/mha"}  // expect: HS504
    ```

    ## What to do
    Save it: name the results with `checkpoint_name` and list the names in `save_only_these_names` (for a kernel with
    a `custom_vjp`, its residuals too), or offload them.

    ## Fix safety
    No automatic fix yet. A saved value is the one that would be recomputed.
    """  # noqa: E501 - HLO has one instruction a line
    families: dict[tuple[str, str], list[Instruction]] = {}
    for computation in analyses.module.control_computations:
        for instruction in computation.instructions:
            kind = _kind(instruction)
            if kind is not None and phase_of(instruction) is Phase.RECOMPUTE:
                what = kernel_name(instruction) if kind == "attention" else ""
                families.setdefault((kind, what), []).append(instruction)
    for (kind, what), found in families.items():
        yield _finding(analyses, f"{kind} {what}".strip(), kind, found)


def _kind(instruction: Instruction) -> str | None:
    if is_attention(instruction):
        return "attention"
    if recognise(instruction) is not None:
        return "grouped matmuls"
    return (
        "matmuls"
        if instruction.opcode in ("dot", "convolution", "fusion") and is_matmul(instruction)
        else None
    )


def _finding(analyses: Analyses, title: str, kind: str, found: list[Instruction]) -> Finding:
    runs = [analyses.module.executions(i.computation) for i in found]
    cost = total(times(n, made_bytes(i)) for i, n in zip(found, runs, strict=True))
    memory = analyses.memory
    room = None
    if memory.hbm_limit_bytes is not None and memory.peak_bytes is not None:
        room = round(_ROOM * memory.hbm_limit_bytes) - memory.peak_bytes
    fits = cost is not None and room is not None and cost <= room
    would = f"would hold {size(cost)}" if cost is not None else "would hold as much as unknown runs make"
    free = (
        f"; {size(max(room, 0))} are free below {share(_ROOM)} of the device's memory"
        if room is not None
        else ""
    )
    return fold(
        analyses,
        "HS504",
        Severity.WARNING if fits and kind == "attention" else Severity.INFO,
        f"{title} recomputed in the backward pass",
        [Site(instruction=i, moved=hbm_bytes(i), saved=None) for i in found],
        advice="add its results to what the checkpoint policy saves, where memory has room",
        details=(f"saving the results {would}{free}",),
        facts={"bytes_to_save": cost, "room_bytes": room},
    )
