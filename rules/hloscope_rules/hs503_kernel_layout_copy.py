"""HS503: a copy stands beside a kernel only because the kernel wants another layout."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.copies import Copy, copies
from hloscope.analysis.place import phase_of
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._copies import kernels_at, work_behind
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS503", name="kernel-layout-copy", severity=Severity.WARNING)
def kernel_layout_copy(analyses: Analyses, *, smallest_bytes: int = 8 << 20) -> Iterable[Finding]:
    """A value is copied into another layout, or other tiles, for a kernel that takes no other, or after one.

    ## What it does
    Finds copies from HBM to HBM that change the order of dimensions or the tiles and whose result a custom call
    reads (Pallas kernels, the compiler's own, on either core), or whose source is a custom call's result; names the
    kernel.

    ## Why is this bad
    The compiler lays out values as their other uses like it; a custom call takes row-major operands with the default
    tiles, so that a pass over the whole value is put between. It costs as much as an elementwise fusion of its size.

    ## Example
    ```hlo
    p = bf16[4096,4096]{0,1} parameter(0)
    x = bf16[4096,4096]{0,1} negate(p)
    turned = bf16[4096,4096]{1,0} copy(x)  // expect: HS503
    ROOT y = bf16[4096,4096]{1,0} custom-call(turned), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Make the layouts meet: transpose in the model where it is free (before a matmul or a gather that can write either
    way), let the kernel take the operand transposed (its index maps can), or shard another dimension.

    ## Fix safety
    No automatic fix yet. Another layout holds the same values.

    ## Options
    - `smallest_bytes`: size of the copy below which it is left alone
    """
    families: dict[tuple[str, str, str, bool], list[Copy]] = {}
    for copy in copies(analyses.module):
        if copy.after.padded_bytes < smallest_bytes or not copy.relayouts:
            continue
        kernels = kernels_at(copy)
        if kernels:
            before = any(work_behind(u.user).opcode == "custom-call" for u in copy.uses)
            key = (copy.after.short, ", ".join(kernels), phase_of(copy.instruction).value, before)
            families.setdefault(key, []).append(copy)
    for (shape, kernels, phase, before), found in families.items():
        first = found[0]
        yield fold(
            analyses,
            "HS503",
            Severity.WARNING,
            f"{shape} copied {'for' if before else 'after'} {kernels}{in_phase(phase)}: another layout",
            [Site(instruction=c.instruction, moved=c.bytes, saved=c.bytes) for c in found],
            advice="let the layouts meet: another axis order in the model, or a kernel that takes the other one",
            details=(
                f"{first.source.shape.layout} becomes {first.after.layout}; the copy takes"
                f" {size(first.after.padded_bytes)}",
            ),
            facts={"kernels": kernels, "copy_bytes": first.bytes},
        )
