"""HS206: the step waits for collectives that nothing hides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.rule import Finding, Severity, rule
from hloscope.units import duration, share
from hloscope_rules._family import Site, fold, in_phase, place_text

_LINES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    collective: Collective
    seconds: float
    exposed: float


@rule(code="HS206", name="exposed-collectives", severity=Severity.INFO, needs="times")
def exposed_collectives(analyses: Analyses, *, share: float = 0.02) -> Iterable[Finding]:
    """The step waits for collectives: nothing else runs while they do, or not for long enough.

    ## What it does
    Adds up what the collectives over the same mesh axes, in the same phase, add to the estimated time of the step:
    all of a synchronous one, and of an asynchronous one the wait at its end, as far as it is its own (not longer than
    it takes). Reports them where that is a fiftieth of the step or more. It says nothing where a time is not known:
    without a chip, without its topology, or of a step with a part that has no estimate. A remark, as times on the wire
    come from a model (a sixth to a third below the few published ones), and nearly every sharded step waits somewhere:
    a project that wants its checks to fail on it sets `severity` in its settings.

    ## Why is this bad
    The matrix units stand still meanwhile. A collective that starts early enough beside enough work costs nothing.

    ## Example
    ```hlo
    HloModule exposed, is_scheduled=true, num_partitions=8
    ENTRY main {
      w = bf16[1024,8192] parameter(0)
      x = bf16[128,8192] parameter(1)
      all = bf16[8192,8192] all-gather(w), replica_groups=[1,8]<=[8], dimensions={0}  // expect: HS206
      ROOT y = bf16[128,8192] dot(x, all), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }
    ```

    ## What to do
    For synchronous ones, let the compiler make them asynchronous (latency hiding scheduler, SparseCore offload) and
    give it independent work: gather the next layer's weights during this one, split tokens into chunks. Where there
    is too little work for so many bytes: narrower types, fewer gathers (see HS202, HS203, HS204), another mesh.

    ## Fix safety
    No automatic fix yet. Another order of the same work changes no value.

    ## Options
    - `share`: part of the estimated step, 0 to 1, from which exposed collectives are reported
    """
    step = analyses.step_time
    if not step.seconds or step.unknown:
        return
    groups: dict[str, list[_Timed]] = {}
    for collective, time in zip(analyses.collectives.collectives, step.collectives, strict=True):
        if time.step_seconds and time.seconds is not None:
            # A wait for others on the same links is not this one's: small ones may well run beside large ones.
            exposed = min(time.step_seconds, time.seconds)
            timed = _Timed(collective=collective, seconds=time.seconds, exposed=exposed)
            groups.setdefault(place_text(collective), []).append(timed)
    for place, found in groups.items():
        exposed = sum(t.exposed for t in found)
        if exposed >= share * step.seconds:
            yield _finding(analyses, f"exposed collectives{place}", found, exposed)


def _finding(analyses: Analyses, title: str, found: Sequence[_Timed], exposed: float) -> Finding:
    step, phase = analyses.step_time, in_phase(found[0].collective.phase).strip()
    # The largest first: what a finding is known by must not hang on estimates.
    largest = sorted(found, key=lambda t: (-t.collective.payload, t.collective.opcode, t.collective.op_name))
    finding = fold(
        analyses,
        "HS206",
        Severity.INFO,
        title,
        [
            Site(instruction=i, moved=t.collective.payload, saved=None)
            for t in largest
            for i in t.collective.instructions
        ],
        advice="start them earlier, beside independent work, or send less",
        details=(
            f"{phase}{': ' if phase else ''}{share(exposed / (step.seconds or 1))} of an estimated step of"
            f" {duration(step.seconds)}",
            *_lines(found),
        ),
        facts={"exposed_seconds": exposed, "step_seconds": step.seconds},
    )
    return replace(finding, saved_seconds=exposed)


def _lines(found: Sequence[_Timed]) -> Iterable[str]:
    """The longest waits, one a line."""
    for timed in sorted(found, key=lambda t: -t.exposed)[:_LINES]:
        one = timed.collective
        wait = "all" if timed.exposed == timed.seconds else duration(timed.exposed)
        kind = "" if one.asynchronous else ", synchronous"
        yield (
            f"{one.opcode} {one.shape}{in_phase(one.phase)} x{one.executions}: {duration(timed.seconds)} on the wire,"
            f" {wait} exposed{kind}"
        )
