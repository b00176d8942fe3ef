"""HS403: a grouped matmul was expanded into a dense one over [experts, tokens, d]."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.masked_rows import MaskedRows, masked_rows
from hloscope.analysis.place import phase_of
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS403", name="dense-grouped-matmul", severity=Severity.WARNING)
def dense_grouped_matmul(analyses: Analyses, *, smallest_bytes: int = 1 << 20) -> Iterable[Finding]:
    """A matmul runs over all rows once for every group, with the rows of other groups masked: [experts, tokens, d].

    ## What it does
    Finds rows [tokens, d] that are broadcast over a further dimension, masked by a comparison with row or group numbers
    (a select, or a product with a one-hot), and taken by a matmul: what `ragged_dot` becomes where no grouped kernel
    supports its shapes, types or platform, and what one-hot code for experts asks for.

    ## Why is this bad
    The matmul does as many times the work as there are groups, nearly all of it on zeros. Where the masked rows are
    written out, as many times the memory, too: often the largest buffer of the step.

    ## Example
    ```hlo
    x = bf16[4096,512] parameter(0)
    w = bf16[8,512,1024] parameter(1)
    ends = s32[8] parameter(2)
    zero = bf16[] constant(0)
    rows = bf16[8,4096,512] broadcast(x), dimensions={1,2}
    zeros = bf16[8,4096,512] broadcast(zero), dimensions={}
    end = s32[8,4096,512] broadcast(ends), dimensions={0}
    row = s32[8,4096,512] iota(), iota_dimension=1
    mine = pred[8,4096,512] compare(row, end), direction=LT
    masked = bf16[8,4096,512] select(mine, rows, zeros)  // expect: HS403
    ROOT out = bf16[8,4096,1024] dot(masked, w), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
    ```

    ## What to do
    Sort rows by expert and use a grouped matmul: `ragged_dot` with shapes that its kernel supports (dimensions that are
    multiples of 128, bf16), or a Pallas kernel such as the `ragged_dot` of hloscope_kernels.

    ## Fix safety
    No automatic fix yet. A grouped matmul leaves out products with zeros, which add nothing unless a weight is not finite.

    ## Options
    - `smallest_bytes`: size of the masked rows below which they are left alone
    """  # noqa: E501 - HLO has one instruction a line
    families: dict[tuple[str, int, str], list[MaskedRows]] = {}
    for found in masked_rows(analyses.module):
        if found.value.shape.bytes >= smallest_bytes:
            key = (found.value.shape.short, found.groups, phase_of(found.instruction).value)
            families.setdefault(key, []).append(found)
    for (shape, groups, phase), sites in families.items():
        made = [s.instruction.shape for s in sites]
        written = [s.padded_bytes for s in made if s.elements == sites[0].value.shape.elements]
        in_hbm = bool(written) and made[0].memory_space == 0
        where = (
            f"each writes {size(written[0])} to HBM"
            if in_hbm
            else "made within the matmul's fusion or in VMEM"
        )
        yield fold(
            analyses,
            "HS403",
            Severity.WARNING,
            f"grouped matmul expanded over {groups} groups: {shape}{in_phase(phase)}",
            [
                Site(
                    instruction=s.instruction,
                    moved=2 * written[0] if in_hbm else None,
                    saved=None,
                    also=(s.matmul,),
                )
                for s in sites
            ],
            advice="sort rows by expert and use a grouped matmul that supports these shapes",
            details=(f"{groups} times the rows, all but one of {groups} masked; {where}",),
            facts={"groups": groups, "in_hbm": in_hbm},
        )
