"""HS103: an operation that the compiler left unfused streams a whole ragged expert buffer."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._ragged import ragged_findings


@rule(code="HS103", name="full-buffer-operation", severity=Severity.WARNING)
def full_buffer_operation(analyses: Analyses) -> Iterable[Finding]:
    """A single operation outside of any fusion streams a whole ragged expert buffer.

    ## What it does
    Among the work on ragged buffers (see HS101), reports what stands alone: the sum of the two gradients that the
    gate's and the up projection's grouped matmuls give, a slice that drops the padding columns of a gather.

    ## Why is this bad
    It moves as many bytes as a fusion would, over empty rows as well, and it has a buffer of its own. A sum of two
    buffers reads both and writes a third.

    ## Example
    ```hlo
    offsets = s32[9] parameter(0)
    a = bf16[4096,1024] parameter(1)
    b = bf16[4096,1024] parameter(2)
    w = bf16[8,1024,512] parameter(3)
    d_gate = bf16[4096,512] custom-call(offsets, a, w), custom_call_target="tpu_custom_call"
    d_up = bf16[4096,512] custom-call(offsets, b, w), custom_call_target="tpu_custom_call"
    ROOT dx = bf16[4096,512] add(d_gate, d_up)  // expect: HS103
    ```

    ## What to do
    Let one grouped matmul over [embed, 2*mlp] give the sum, or let the second one add to the first one's output;
    have a gather write rows of the width that is read. Else visit only the valid rows.

    ## Fix safety
    The command `apply-rules` puts valid-row kernels where it proves that nobody reads the rows that they leave
    unwritten, and nowhere else.
    """
    return ragged_findings(
        analyses,
        code="HS103",
        severity=Severity.WARNING,
        roles=frozenset({"operation", "slice"}),
        what="full-buffer operation over ragged rows",
        advice="fold it into a grouped matmul or a gather beside it, or visit only the valid rows",
    )
