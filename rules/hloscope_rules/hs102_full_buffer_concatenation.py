"""HS102: a pass over a whole ragged expert buffer that only places halves side by side, or copies it."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._ragged import ragged_findings


@rule(code="HS102", name="full-buffer-concatenation", severity=Severity.WARNING)
def full_buffer_concatenation(analyses: Analyses) -> Iterable[Finding]:
    """A pass over a whole ragged expert buffer that computes nothing: it concatenates halves, or copies.

    ## What it does
    Among the work on ragged buffers (see HS101), reports fusions that only place operands side by side
    (`pad` and `maximum` or `add`, `concatenate`, updates of column ranges) and copies of a whole buffer.

    ## Why is this bad
    When gate and up share one buffer [rows, 2*mlp], XLA computes the gradients of the two halves apart and then
    reads and writes all of it once more to join them. The pass moves twice the buffer's bytes, empty rows too,
    and both halves are alive beside the whole.

    ## Example
    ```hlo
    join {
      a = bf16[4096,1024] parameter(0)
      b = bf16[4096,1024] parameter(1)
      zero = bf16[] constant(0)
      left = bf16[4096,2048] pad(a, zero), padding=0_0x0_1024
      right = bf16[4096,2048] pad(b, zero), padding=0_0x1024_0
      ROOT both = bf16[4096,2048] maximum(left, right)
    }
    offsets = s32[9] parameter(0)
    d_gate = bf16[4096,1024] parameter(1)
    d_up = bf16[4096,1024] parameter(2)
    w = bf16[8,2048,512] parameter(3)
    d_both = bf16[4096,2048] fusion(d_gate, d_up), kind=kLoop, calls=join  // expect: HS102
    ROOT dx = bf16[4096,512] custom-call(offsets, d_both, w), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Write both halves in one pass, from the kernel that computes them, or keep gate and up as two buffers with a
    grouped matmul each.

    ## Fix safety
    The command `apply-rules` puts valid-row kernels where it proves that nobody reads the rows that they leave
    unwritten, and nowhere else. One sign may change: a maximum with padding turns -0 into +0, a plain write does not.
    """
    return ragged_findings(
        analyses,
        code="HS102",
        severity=Severity.WARNING,
        roles=frozenset({"concatenation", "copy"}),
        what="full-buffer pass that only concatenates or copies",
        advice="write both halves in one pass, over the valid rows only",
    )
