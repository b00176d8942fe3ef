"""HS308: one temporary is a large part of the peak."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Buffer
from hloscope.rule import Finding, Severity, rule
from hloscope.units import percent
from hloscope_rules._family import in_phase
from hloscope_rules._peak import buffer_finding, last_reader, of_peak

# The part of a device's memory from which a peak is a worry.
_TIGHT = 0.8


@rule(code="HS308", name="dominating-buffer", severity=Severity.INFO, needs="memory")
def dominating_buffer(analyses: Analyses, *, share_of_peak: float = 0.25) -> Iterable[Finding]:
    """One temporary buffer is a quarter or more of the memory at the peak.

    ## What it does
    Looks at the temporaries alive at the peak and reports the largest one, with where it is made, what reads it last
    and how much of the schedule lies between, if it takes a quarter of the peak. A warning where the peak is above
    80 % of the device's memory, else a remark.

    ## Why is this bad
    No other change lowers the peak as much as making this one smaller, or its life shorter.

    ## Example
    ```hlo
    p = f32[8192,8192] parameter(0)
    x = f32[8192,8192] negate(p)  // expect: HS308
    ROOT y = f32[8192,8192] exponential(x)
    ```

    ## What to do
    For logits: compute the loss in chunks of the vocabulary or of tokens. For what a loop stacks: save less, in a
    narrower type, sharded, or offload it to the host. For a gathered weight: gather it later, or in parts. For
    activations: checkpoint what makes it.

    ## Fix safety
    No automatic fix yet.

    ## Options
    - `share_of_peak`: part of the peak from which a buffer dominates it
    """
    memory = analyses.memory
    temporaries = [b for b in memory.buffers_at_peak if b.kind == "temp" and b.instruction is not None]
    if not temporaries or not memory.peak_bytes:
        return
    largest = temporaries[0]
    if largest.bytes < share_of_peak * memory.peak_bytes:
        return
    tight = memory.hbm_limit_bytes is not None and memory.peak_bytes > _TIGHT * memory.hbm_limit_bytes
    yield buffer_finding(
        analyses,
        "HS308",
        Severity.WARNING if tight else Severity.INFO,
        f"{largest.shape.short if largest.shape else 'a buffer'} dominates the peak: {largest.label}"
        f"{in_phase(largest.phase)}",
        [largest],
        held=largest.bytes,
        advice=_advice(largest),
        details=(f"{of_peak(analyses, largest.bytes)}; {_life(analyses, largest)}",),
        facts={"first": largest.first, "last": largest.last},
    )


def _life(analyses: Analyses, buffer: Buffer) -> str:
    made, reader = buffer.instruction, last_reader(buffer)
    length = analyses.memory.schedule_length
    life = f"made by %{made.name}" if made else "made"
    life += f", read last by %{reader.name}" if reader else ""
    if buffer.first is None or buffer.last is None or not length:
        return life
    return f"{life}; alive for {percent(buffer.last - buffer.first + 1, length)} of the schedule"


def _advice(buffer: Buffer) -> str:
    if "stacked by a loop" in buffer.label:
        return "save less for the backward pass: another checkpoint policy, a narrower type, or offload to the host"
    made = buffer.instruction.opcode if buffer.instruction else ""
    if made.startswith("all-gather"):
        return "gather it later, or use it up before anything else is made"
    return "make and use it in chunks, or checkpoint what makes it"
