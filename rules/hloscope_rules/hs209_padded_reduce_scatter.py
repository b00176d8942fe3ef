"""HS209: a value is padded so that a reduce-scatter can split it into tiles."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.layout import layout_changes
from hloscope.analysis.uses import standing
from hloscope.analysis.work import fusion_bodies
from hloscope.hlo import Instruction, async_operation, is_async_start
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, place_text


@rule(code="HS209", name="padded-reduce-scatter", severity=Severity.INFO)
def padded_reduce_scatter(analyses: Analyses) -> Iterable[Finding]:
    """A value is padded along the dimension that its reduce-scatter splits.

    ## What it does
    Looks at what each reduce-scatter reduces (the opcode, or the fusion of an all-reduce with a slice, within which
    the padding often stands) and reports a pad that makes the scattered dimension longer.

    ## Why is this bad
    A dimension of 7168 over 512 devices gives 14 rows each, which no tile holds: padded to 16, everything that is
    sent, added and stored grows by a seventh, and what a device keeps no longer lines up with its parameter.

    ## Example
    ```hlo
    add {
      a = bf16[] parameter(0)
      b = bf16[] parameter(1)
      ROOT sum = bf16[] add(a, b)
    }
    grad = bf16[7168,4096] parameter(0)
    zero = bf16[] constant(0)
    padded = bf16[8192,4096] pad(grad, zero), padding=0_1024x0_0
    ROOT rs = bf16[16,4096] reduce-scatter(padded), replica_groups=[1,512]<=[512], dimensions={0}, to_apply=add  // expect: HS209
    ```

    ## What to do
    Shard another dimension of the parameter over these axes, or shard this one over fewer of them, so that each
    device's share is a multiple of the tile (8 rows of f32, 16 of bf16, 128 columns).

    ## Fix safety
    No automatic fix yet. Another sharding computes the same sums, perhaps in another order.
    """  # noqa: E501 - HLO has one instruction a line
    for collective in analyses.collectives.collectives:
        if collective.opcode != "reduce-scatter" or collective.dimension is None:
            continue
        pads = {i: _pad(i, collective) for i in collective.instructions}
        found = {i: pad for i, pad in pads.items() if pad is not None}
        if found:
            yield _finding(analyses, collective, found)


def _pad(instruction: Instruction, collective: Collective) -> Instruction | None:
    """The pad in front of a reduce-scatter that lengthens the dimension it splits."""
    if collective.form == "fusion":
        inner = (i for body in fusion_bodies(instruction) for i in body.instructions)
        values = [o for i in inner if i.opcode == "all-reduce" for o in i.operands]
    else:
        start = standing(instruction)
        values = list(async_operation(start).operands if is_async_start(start.opcode) else start.operands)
    for value in values:
        made = layout_changes(value)[0]
        if made.opcode == "fusion" and made.called_computations:
            made = layout_changes(made.called_computations[0].root)[0]
        dimension = collective.dimension or 0
        if made.opcode != "pad" or dimension >= len(made.shape.dimensions):
            continue
        if made.shape.dimensions[dimension] > made.operands[0].shape.dimensions[dimension]:
            return made
    return None


def _finding(analyses: Analyses, collective: Collective, found: dict[Instruction, Instruction]) -> Finding:
    pad = next(iter(found.values()))
    before, after = pad.operands[0].shape, pad.shape
    more = after.bytes - before.bytes
    return fold(
        analyses,
        "HS209",
        Severity.INFO,
        f"{before.short} padded to {after.short} for its reduce-scatter{place_text(collective)}",
        [Site(instruction=i, moved=after.bytes, saved=more) for i in found],
        advice="shard another dimension, or over fewer devices, so that each share fills whole tiles",
        details=(f"{size(more)} of {size(after.bytes)} each time are padding",),
        facts={"padding_bytes": more},
    )
