"""HS208: gathered weights are saved in the forward pass for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.stacking import stacked_by
from hloscope.analysis.uses import results, standing
from hloscope.hlo import Instruction, Shape
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, place_text


@rule(code="HS208", name="saved-gather", severity=Severity.WARNING)
def saved_gather(analyses: Analyses) -> Iterable[Finding]:
    """What a layer gathered is stacked by its loop, one copy for each layer, so that the backward pass finds it.

    ## What it does
    Follows the result of every all-gather in a loop to its uses, and reports it where one of them writes all of
    it into a slot of a buffer that the loop carries: a residual, alive from there to the backward pass.

    ## Why is this bad
    The weights were sharded so that a device need not hold them all; now it holds every layer's in full, at the
    peak. Gathering them again in the backward pass costs one more collective a layer, which overlaps with compute.

    ## Example
    ```hlo
    body {
      state = (s32[], bf16[6,4096,1024], bf16[6,512,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      saved = bf16[6,4096,1024] get-tuple-element(state), index=1
      ws = bf16[6,512,1024] get-tuple-element(state), index=2
      zero = s32[] constant(0)
      one = s32[] constant(1)
      w = bf16[1,512,1024] dynamic-slice(ws, i, zero, zero), dynamic_slice_sizes={1,512,1024}
      full = bf16[1,4096,1024] all-gather(w), replica_groups=[1,8]<=[8], dimensions={1}  // expect: HS208
      stacked = bf16[6,4096,1024] dynamic-update-slice(saved, full, i, zero, zero)
      next = s32[] add(i, one)
      ROOT out = (s32[], bf16[6,4096,1024], bf16[6,512,1024]) tuple(next, stacked, ws)
    }
    condition {
      state = (s32[], bf16[6,4096,1024], bf16[6,512,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      six = s32[] constant(6)
      ROOT less = pred[] compare(i, six), direction=LT
    }
    start = (s32[], bf16[6,4096,1024], bf16[6,512,1024]) parameter(0)
    ROOT loop = (s32[], bf16[6,4096,1024], bf16[6,512,1024]) while(start), condition=condition, body=body
    ```

    ## What to do
    Gather within `jax.checkpoint`, with a policy that does not save what was gathered (`save_only_these_names`, or
    `everything_saveable` less the gathers), so that the backward pass gathers again.

    ## Fix safety
    No automatic fix yet. Gathering again gives the same values.
    """
    for collective in analyses.collectives.collectives:
        if collective.opcode != "all-gather":
            continue
        found: dict[Instruction, tuple[Instruction, Shape]] = {}
        for instruction in collective.instructions:
            users = (u for _, array_users in results(standing(instruction)) for u in array_users)
            stack = next(((u.user, s) for u in users if (s := stacked_by(u)) is not None), None)
            if stack is not None:
                found[instruction] = stack
        if found:
            yield _finding(analyses, collective, found)


def _finding(
    analyses: Analyses, collective: Collective, found: dict[Instruction, tuple[Instruction, Shape]]
) -> Finding:
    writer, stack = next(iter(found.values()))
    each = collective.payload
    held = sum(s.padded_bytes for _, s in found.values())
    return fold(
        analyses,
        "HS208",
        Severity.WARNING,
        f"gathered {collective.shape}{place_text(collective)} saved for every trip",
        [Site(instruction=i, moved=2 * each, saved=None, also=(w,)) for i, (w, _) in found.items()],
        advice="gather again in the backward pass: keep gathers out of what the checkpoint policy saves",
        details=(
            f"stacked by %{writer.name} into {stack.short}: {size(held)} of memory between forward and backward",
        ),
        facts={"held_bytes": held},
    )
