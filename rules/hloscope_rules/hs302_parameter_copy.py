"""HS302: a parameter, or what was gathered of it, is copied into another layout."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.copies import Copy, copies
from hloscope.analysis.place import phase_of
from hloscope.analysis.values import entry_parameter
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._copies import kernels_at
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS302", name="parameter-copy", severity=Severity.WARNING)
def parameter_copy(analyses: Analyses, *, smallest_bytes: int = 8 << 20) -> Iterable[Finding]:
    """A parameter, or what was gathered of it, is written to HBM once more in another layout.

    ## What it does
    Finds copies and transposes from HBM to HBM that change the layout and whose value comes from a parameter of the
    step: through slices of a stack of layers, loops that leave it alone, gathers and casts. Copies for a kernel are
    HS503; those that change the type on the way are left out, as the cast is needed anyway.

    ## Why is this bad
    All of the weight is read and written again in every step, or in every layer, to lie as one matmul likes it, and
    both copies are alive together.

    ## Example
    ```hlo
    body {
      p = bf16[4096,4096]{0,1} parameter(0)
      ROOT s = bf16[4096,4096]{0,1} add(p, p)
    }
    shard = bf16[512,4096]{1,0} parameter(0)
    w = bf16[4096,4096]{1,0} all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}
    turned = bf16[4096,4096]{0,1} copy(w)  // expect: HS302
    ROOT y = bf16[4096,4096]{0,1} fusion(turned), kind=kLoop, calls=body
    ```

    ## What to do
    Store the parameter the way it is used (swap its axes in the model), shard another dimension so that a gather
    puts shards together in the order that is wanted, or let both uses contract the same dimension.

    ## Fix safety
    No automatic fix yet. A parameter stored otherwise holds the same values; checkpoints have to be converted.

    ## Options
    - `smallest_bytes`: size of the copy below which it is left alone
    """
    families: dict[tuple[str, str, str], list[tuple[Copy, Instruction]]] = {}
    for copy in copies(analyses.module):
        if copy.after.padded_bytes < smallest_bytes or not copy.relayouts or copy.converts:
            continue
        parameter = entry_parameter(copy.source)
        if parameter is not None and not kernels_at(copy):
            key = (copy.after.short, str(copy.after.layout), phase_of(copy.instruction).value)
            families.setdefault(key, []).append((copy, parameter))
    for (shape, _, phase), found in families.items():
        copy, parameter = found[0]
        reader = copy.uses[0].user if copy.uses else copy.instruction
        yield fold(
            analyses,
            "HS302",
            Severity.WARNING,
            f"parameter copied into another layout: {shape}{in_phase(phase)}",
            [Site(instruction=c.instruction, moved=c.bytes, saved=c.bytes) for c, _ in found],
            advice="store or shard the parameter so that it lies as it is used",
            details=(
                f"of {_name(parameter)}: {copy.source.shape} becomes {copy.after}, for %{reader.name}",
                f"the copy takes {size(copy.after.padded_bytes)}",
            ),
            facts={"parameters": sorted({_name(p) for _, p in found}), "copy_bytes": copy.bytes},
        )


def _name(parameter: Instruction) -> str:
    return parameter.op_name or f"parameter {parameter.parameter_number}"
