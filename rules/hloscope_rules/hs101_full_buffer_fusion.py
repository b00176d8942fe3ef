"""HS101: a fusion streams a whole ragged expert buffer, empty rows included."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._ragged import ragged_findings


@rule(code="HS101", name="full-buffer-fusion", severity=Severity.WARNING)
def full_buffer_fusion(analyses: Analyses) -> Iterable[Finding]:
    """A fusion streams a whole ragged expert buffer though only its first rows are tokens.

    ## What it does
    Starts from every grouped matmul of the module (XLA's ragged-dot, or a Pallas gmm or tgmm, told by its
    operands), follows its row buffers through operations that keep rows apart, and reports each fusion on the
    way that reads or writes a buffer of all those rows in HBM: the activation and its recomputation, its
    backward, the weighting of rows, the masks. What stands outside of fusions is HS102 and HS103.

    ## Why is this bad
    The buffer has room for the worst routing. Grouped matmuls visit only the rows that hold tokens, the first
    sum(group_sizes) ones; elementwise fusions around them visit all. At 56 % valid rows, 44 % of the bytes that
    these fusions move carry nothing, in every layer, forward, recomputed and backward.

    ## Example
    ```hlo
    silu {
      g = bf16[4096,1024] parameter(0)
      n = bf16[4096,1024] negate(g)
      e = bf16[4096,1024] exponential(n)
      ROOT s = bf16[4096,1024] multiply(g, e)
    }
    offsets = s32[9] parameter(0)
    x = bf16[4096,512] parameter(1)
    w = bf16[8,512,1024] parameter(2)
    v = bf16[8,1024,512] parameter(3)
    gate = bf16[4096,1024] custom-call(offsets, x, w), custom_call_target="tpu_custom_call"  // a gmm
    act = bf16[4096,1024] fusion(gate), kind=kLoop, calls=silu  // expect: HS101
    ROOT out = bf16[4096,512] custom-call(offsets, act, v), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Replace the fusion by a kernel that visits only the blocks below the number of valid rows, or make the
    buffer smaller. Where nobody reads the rows behind the last token, they need not be written either.

    ## Fix safety
    The command `apply-rules` puts valid-row kernels where it proves that nobody reads the rows that they leave
    unwritten, and nowhere else.
    """
    return ragged_findings(
        analyses,
        code="HS101",
        severity=Severity.WARNING,
        roles=frozenset({"fusion"}),
        what="full-buffer fusion over ragged rows",
        advice="visit only the valid rows: a kernel over the blocks below sum(group_sizes)",
    )
