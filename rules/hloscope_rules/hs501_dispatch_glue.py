"""HS501: dispatch and combine of an MoE layer are many small kernels of index work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.glue import glue_of
from hloscope.analysis.place import phase_of
from hloscope.analysis.traffic import hbm_bytes
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import count
from hloscope_rules._family import Site, fold, in_phase

_KINDS = 4


@rule(code="HS501", name="dispatch-glue", severity=Severity.INFO)
def dispatch_glue(analyses: Analyses, *, many: int = 16) -> Iterable[Finding]:
    """The index work around a ragged buffer (sorts, histograms, prefix sums, row numbers) is many small kernels.

    ## What it does
    Follows the integer operands of the grouped matmuls, and of the gathers and scatters beside their buffers, back as
    long as results are integers or masks, through loops and asynchronous operations, and counts what runs on its own.
    Reports 16 instructions or more of one phase.

    ## Why is this bad
    Each of them takes a few microseconds whatever its size, one after another, and the tokens' gather and the grouped
    matmuls wait for the last. Recomputed in the backward pass, all of it runs again, though its results are small.

    ## Example
    ```hlo
    start = s32[8] parameter(0)
    x = bf16[4096,512] parameter(1)
    w = bf16[8,512,1024] parameter(2)
    zero = s32[] constant(0)
    s{n} = s32[8] pad(start, zero), padding=0_0  // 20 of them; expect: HS501
    sizes = s32[160] concatenate(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19), dimensions={0}
    ROOT out = bf16[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Save the sort order and the group sizes for the backward pass (a few bytes a token) rather than recompute them;
    sort once, with keys and values together; use a kernel for the whole dispatch; keep searches out of loops
    (`searchsorted` with `method="compare_all"`).

    ## Fix safety
    No automatic fix yet. Integers that are saved are the ones that would be recomputed.

    ## Options
    - `many`: how many instructions of one phase there must be
    """  # noqa: E501 - HLO has one instruction a line
    families: dict[tuple[int, int, str], dict[int, Instruction]] = {}
    for buffer in analyses.rows.buffers:
        for work in glue_of(buffer):
            key = (buffer.rows, buffer.groups, phase_of(work).value)
            families.setdefault(key, {})[work.id] = work
    for (rows, groups, phase), found in families.items():
        if len(found) < many:
            continue
        kinds = Counter(w.opcode for w in found.values()).most_common(_KINDS)
        yield fold(
            analyses,
            "HS501",
            Severity.INFO,
            f"index work around {rows:,} ragged rows of {groups} groups{in_phase(phase)}: many small kernels",
            # The first stands for all: the same one whatever the order of the instructions.
            [
                Site(instruction=w, moved=hbm_bytes(w), saved=None)
                for w in sorted(found.values(), key=lambda w: w.op_name, reverse=True)
            ],
            advice="save sort order and group sizes for backward, sort once, or dispatch in one kernel",
            details=(f"{count(len(found))} instructions: " + ", ".join(f"{n} {kind}" for kind, n in kinds),),
            facts={"rows": rows, "groups": groups, "instructions": len(found)},
        )
