"""HS301: a large buffer waits for a loop to end that does not use it."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Buffer
from hloscope.analysis.spans import Loops, Spanned
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._family import in_phase
from hloscope_rules._peak import BufferKey, buffer_finding, buffer_key, last_reader, of_peak


@rule(code="HS301", name="live-across-loop", severity=Severity.WARNING, needs="memory")
def live_across_loop(
    analyses: Analyses, *, share_of_peak: float = 0.02, share_of_schedule: float = 0.1
) -> Iterable[Finding]:
    """A buffer that is alive at the peak only waits there: a loop runs from start to end that does not use it.

    ## What it does
    Among the temporaries alive at the peak, finds those that are made before a loop and read last after it, in the
    same computation, and are no part of the loop's state. The loop's body must be a tenth of the schedule.

    ## Why is this bad
    The buffer adds to every layer's peak. Typical are the gradient of the logits, kept through the backward pass of
    all layers because the embedding's gradient is computed after it, and gradients that wait for an optimizer.

    ## Example
    ```hlo
    body {
      state = (s32[], f32[1024,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      x = f32[1024,1024] get-tuple-element(state), index=1
      one = s32[] constant(1)
      next = s32[] add(i, one)
      y = f32[1024,1024] exponential(x)
      ROOT out = (s32[], f32[1024,1024]) tuple(next, y)
    }
    condition {
      state = (s32[], f32[1024,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      six = s32[] constant(6)
      ROOT less = pred[] compare(i, six), direction=LT
    }
    p = f32[8192,8192] parameter(0)
    start = (s32[], f32[1024,1024]) parameter(1)
    logits = f32[8192,8192] negate(p)  // expect: HS301
    loop = (s32[], f32[1024,1024]) while(start), condition=condition, body=body
    ROOT late = f32[8192,8192] exponential(logits)
    ```

    ## What to do
    Use it up before the loop (compute the embedding's gradient right after the loss, in a `custom_vjp` or in chunks),
    recompute it afterwards from something smaller, or apply the optimizer to each layer's gradient within the scan.

    ## Fix safety
    The command `apply-rules` puts a sum over many rows (a parameter's gradient) before a loop that it does not depend
    on, where what it reads dies with it. Another order of the same operations computes the same values.

    ## Options
    - `share_of_peak`: part of the peak below which buffers of one family are left alone
    - `share_of_schedule`: part of the schedule that the loop's body must be
    """
    peak = analyses.memory.peak_bytes
    if not peak:
        return
    loops = Loops(analyses.module)
    families: dict[BufferKey, list[tuple[Buffer, Spanned]]] = {}
    for buffer in analyses.memory.buffers_at_peak:
        spanned = loops.spanned_by(buffer) if buffer.kind == "temp" else None
        if spanned is not None and spanned.share >= share_of_schedule:
            families.setdefault(buffer_key(buffer), []).append((buffer, spanned))
    for (label, shape, phase), found in families.items():
        held = sum(b.bytes for b, _ in found)
        if held < share_of_peak * peak:
            continue
        buffer, spanned = found[0]
        reader = last_reader(buffer)
        yield buffer_finding(
            analyses,
            "HS301",
            Severity.WARNING,
            f"{shape or 'a buffer'} waits through a loop: {label}{in_phase(phase)}",
            [b for b, _ in found],
            held=held,
            advice="use it up before the loop, or make it again from something smaller",
            details=(
                f"{of_peak(analyses, held)}; made before %{spanned.loop.name}, read last by"
                f" {'%' + reader.name if reader else 'what follows'}",
            ),
            fix="safe",
            facts={"loop": spanned.loop.name, "loop_share_of_schedule": round(spanned.share, 3)},
        )
