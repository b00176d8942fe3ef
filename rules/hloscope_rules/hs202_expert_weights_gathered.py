"""HS202: the weights of all experts are gathered on every device."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.grouped import GroupedMatmul, grouped_matmuls
from hloscope.analysis.values import origin
from hloscope.analysis.work import COLLECTIVES, started_result
from hloscope.hlo import Instruction, start_of
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, place_text


@rule(code="HS202", name="expert-weights-gathered", severity=Severity.WARNING)
def expert_weights_gathered(analyses: Analyses) -> Iterable[Finding]:
    """The weights of all experts are gathered on every device, along the dimension that counts the experts.

    ## What it does
    Follows the weights [groups, k, n] of every grouped matmul back to where they come from, and reports an
    all-gather there that puts experts together. One along another dimension (the embedding or the mlp), which
    completes the experts that a device owns, is as it should be.

    ## Why is this bad
    Each device receives and keeps every expert's weights, and visits all of them, though the devices could own
    some experts each and exchange tokens instead, whose bytes do not grow with the number of experts.

    ## Example
    ```hlo
    mine = bf16[8,1024,2048] parameter(0)
    x = bf16[4096,1024] parameter(1)
    sizes = s32[64] parameter(2)
    all = bf16[64,1024,2048] all-gather(mine), replica_groups=[1,8]<=[8], dimensions={0}  // expect: HS202
    ROOT out = bf16[4096,2048] custom-call(sizes, x, all), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Keep the experts apart over this axis (ring of experts, or all-to-all of tokens), and shard their weights'
    other dimensions over the axes that are not expert parallel: then only those are gathered.

    ## Fix safety
    No automatic fix yet. The sums are the same ones; tokens are computed elsewhere.
    """
    owners = {i.id: c for c in analyses.collectives.collectives for i in c.instructions}
    found: dict[int, tuple[Collective, list[Instruction]]] = {}
    for matmul in grouped_matmuls(analyses.module):
        for weights in _weights(matmul):
            gather = start_of(origin(weights))
            collective = owners.get(gather.id)
            if collective is not None and _joins_experts(gather, collective, matmul.groups):
                sites = found.setdefault(id(collective), (collective, []))[1]
                sites += [] if gather in sites else [gather]
    for collective, gathers in found.values():
        payload = started_result(gathers[0]).bytes
        yield fold(
            analyses,
            "HS202",
            Severity.WARNING,
            f"weights of all experts {collective.shape} gathered{place_text(collective)}",
            [Site(instruction=g, moved=payload, saved=None) for g in gathers],
            advice="keep experts apart over this axis and exchange tokens; shard weights over the other axes",
            details=(f"{size(payload)} of weights arrive on every device each time",),
            facts={"mesh_axes": list(collective.mesh_axes) if collective.mesh_axes else None},
        )


def _weights(matmul: GroupedMatmul) -> list[Instruction]:
    """The operands [groups, k, n] of a grouped matmul."""
    operands = matmul.instruction.operands
    return [o for o in operands if len(o.shape.dimensions) == 3 and o.shape.dimensions[0] == matmul.groups]


def _joins_experts(gather: Instruction, collective: Collective, groups: int) -> bool:
    """Whether a gather's dimension is the one of the experts: the first, those of size one left out."""
    if gather.opcode.removesuffix("-start") not in COLLECTIVES or collective.opcode != "all-gather":
        return False
    dimensions = started_result(gather).dimensions
    along = collective.dimension
    if along is None or dimensions[along] != groups:
        return False
    return all(d == 1 for d in dimensions[:along])
