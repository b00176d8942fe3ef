"""HS205: many small collectives of one kind, each paying its latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, place_text

_LINES = 4


@rule(code="HS205", name="many-small-collectives", severity=Severity.INFO)
def many_small_collectives(
    analyses: Analyses, *, small_bytes: int = 1 << 18, many: int = 32, often: int = 64
) -> Iterable[Finding]:
    """Many small collectives of one kind over the same mesh axes, each of which pays its start-up by itself.

    ## What it does
    Counts the collectives of a kind, over the same mesh axes, in the same phase, that carry less than 256 KiB
    each, and reports 32 instructions or more that run 64 times a step or more, with how many there are of which
    size.

    ## Why is this bad
    A small collective takes as long as its hops, not its bytes: a ring of 256 devices has 255 of them. A hundred
    gathers of a norm's scale cost more than one gather of all scales. Permutations in such numbers are a matmul
    that the compiler split into a ring of steps too small to hide them.

    ## Example
    ```hlo
    s = f32[128] parameter(0)
    g{n} = f32[1024] all-gather(s), replica_groups=[1,8]<=[8], dimensions={0}  // 64 of them; expect: HS205
    ROOT last = f32[1024] negate(g63)
    ```

    ## What to do
    Keep small parameters (norm scales, biases, routers) replicated, stack them into one parameter, or raise the
    compiler's combine thresholds. For permutations: bigger pieces, or no collective matmul at this size.

    ## Fix safety
    No automatic fix yet. Gathering together what was gathered apart changes no value.

    ## Options
    - `small_bytes`: payload from which a collective is no small one
    - `many`: how many instructions there must be, which might be one
    - `often`: how often they must run in a step, together
    """
    groups: dict[tuple[str, str], list[Collective]] = {}
    for collective in analyses.collectives.collectives:
        if collective.bytes is None or not collective.executions:
            continue
        if collective.bytes < small_bytes * collective.executions:
            key = (collective.opcode, place_text(collective))
            groups.setdefault(key, []).append(collective)
    for (opcode, place), found in groups.items():
        count = sum(c.count for c in found)
        if count < many or sum(c.executions or 0 for c in found) < often:
            continue
        yield _finding(analyses, f"many small {opcode}s{place}", found)


def _finding(analyses: Analyses, title: str, found: list[Collective]) -> Finding:
    sizes: Counter[int] = Counter()
    for collective in found:
        sizes[collective.payload] += collective.executions or 0
    lines = [f"{count:,} of {size(each)}" for each, count in sizes.most_common(_LINES)]
    each = {i: c.payload for c in found for i in c.instructions}
    return fold(
        analyses,
        "HS205",
        Severity.INFO,
        title,
        [Site(instruction=i, moved=payload, saved=None) for i, payload in each.items()],
        advice="put them together, or keep what is so small replicated",
        details=("in a step: " + ", ".join(lines),),
        facts={"sizes": {str(each): count for each, count in sizes.items()}},
    )
