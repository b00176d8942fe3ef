"""HS502: two elementwise passes write and read a large array between them that one pass would not need."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.lost_edges import Edge, lost_edges
from hloscope.analysis.place import phase_of
from hloscope.analysis.widths import widened_from
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS502", name="lost-fusion", severity=Severity.INFO, needs="schedule")
def lost_fusion(analyses: Analyses, *, smallest_bytes: int = 8 << 20) -> Iterable[Finding]:
    """One elementwise pass writes an array to HBM that only one other elementwise pass reads.

    ## What it does
    Finds results in HBM of elementwise operations and fusions (no matmul, reduction, gather, or move across rows in
    them) whose only reader is elementwise as well, and names the edge between the two: the layout change or copy that
    stands on it, or that layouts differ, or that nothing in the module tells why. What the first only widens is left
    to HS306. A module without a schedule is left alone: the compiler has not fused yet.

    ## Why is this bad
    In one pass the array would stay in registers. It is written and read once for nothing and has a buffer of its own.

    ## Example
    ```hlo
    x = bf16[4096,4096] parameter(0)
    a = bf16[4096,4096] exponential(x)  // expect: HS502
    ROOT b = bf16[4096,4096] negate(a)
    ```

    ## What to do
    Where a layout change stands on the edge, make both sides want the same one: no transpose or reshape between them
    in the model, no split of a dimension on one side only. Where nothing does, look for an optimization barrier, a
    custom call or a `checkpoint_name` between the two in the program.

    ## Fix safety
    No automatic fix yet. Fused arithmetic may skip a rounding to bf16 between the two.

    ## Options
    - `smallest_bytes`: size of the array below which it is left alone
    """
    if not analyses.module.is_scheduled:
        return
    families: dict[tuple[str, str, str], list[Edge]] = {}
    for edge in lost_edges(analyses.module, smallest_bytes):
        if widened_from(edge.producer, edge.index) is not None:
            continue
        key = (edge.value.short, phase_of(edge.producer).value, edge.reason)
        families.setdefault(key, []).append(edge)
    for (shape, phase, reason), found in families.items():
        first = found[0]
        yield fold(
            analyses,
            "HS502",
            Severity.INFO,
            f"{shape} between two elementwise passes{in_phase(phase)}",
            [
                Site(
                    instruction=e.producer,
                    moved=2 * e.value.padded_bytes,
                    saved=2 * e.value.padded_bytes,
                    also=(e.consumer,),
                )
                for e in found
            ],
            advice="make both sides want the same layout, so that they fuse",
            details=(
                f"%{first.producer.name} → %{first.consumer.name}: {reason}",
                f"{size(first.value.padded_bytes)} written and read each time",
            ),
            facts={"reason": reason},
        )
