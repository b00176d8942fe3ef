"""HS207: a value is gathered in full only to be sliced again: the partitioner knew no better way to reshard it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.replicated import replicated_values
from hloscope.analysis.uses import Use, results, standing
from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import share, size
from hloscope_rules._family import Site, fold, place_text

_ADVICE = "bring the two shardings closer: constrain the value to one in between"
_LONGEST = 240


@rule(code="HS207", name="involuntary-replication", severity=Severity.WARNING)
def involuntary_replication(analyses: Analyses, *, smallest_bytes: int = 1 << 20) -> Iterable[Finding]:
    """An array is gathered in full on every device, and each device then keeps a slice of it.

    ## What it does
    Follows the result of every all-gather to all that read it, through copies, reshapes and asynchronous ends,
    and reports it where each reader takes at most half by a slice whose place depends on the device. This is what
    the compiler's warning about involuntary full rematerialization leaves in the module. The warnings themselves are
    reported, too, where the compile was hloscope's own.

    ## Why is this bad
    To go from one sharding to another the partitioner replicated the whole array first: every device receives
    and holds all of it, where an all-to-all or a permutation would have moved each device's share alone.

    ## Example
    ```hlo
    shard = bf16[512,4096] parameter(0)
    mine = s32[] parameter(1)
    zero = s32[] constant(0)
    all = bf16[4096,4096] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}  // expect: HS207
    ROOT part = bf16[4096,512] dynamic-slice(all, zero, mine), dynamic_slice_sizes={4096,512}
    ```

    ## What to do
    Look at the two shardings that meet at this line. Put `with_sharding_constraint` on one in between that shares
    a dimension with each, keep device orders alike, and do not reshape across a sharded dimension.

    ## Fix safety
    No automatic fix yet. Another road between two shardings moves the same values.

    ## Options
    - `smallest_bytes`: bytes gathered in a step below which nothing is said
    """
    for collective in analyses.collectives.collectives:
        if collective.opcode != "all-gather" or collective.form != "opcode":
            continue
        shares = {i: _share(standing(i)) for i in collective.instructions}
        found = {i: read for i, read in shares.items() if read is not None}
        # How often it runs may be unknown: then what one run moves counts, not nothing.
        gathered = collective.payload if collective.bytes is None else collective.bytes
        if found and gathered >= smallest_bytes:
            yield _finding(analyses, collective, found)
    yield from _of_warnings(analyses)


def _of_warnings(analyses: Analyses) -> Iterator[Finding]:
    """One finding for each shape and operation that the compiler warned about."""
    for said in replicated_values(analyses.module, analyses.compiler_warnings):
        yield Finding(
            code="HS207",
            severity=Severity.WARNING,
            title=f"the compiler replicated {said.shape} to reshard it",
            instructions=(said.instruction,) if said.instruction else (),
            places=said.count,
            source=said.instruction.source if said.instruction else None,
            executions=None,
            bytes=None,
            saved_bytes=None,
            saved_seconds=None,
            fix="none",
            advice=_ADVICE,
            details=(f"the compiler's warning: {said.text[:_LONGEST]}",),
        )


def _share(gather: Instruction) -> float | None:
    """The largest share that a reader takes of a gathered array, or None where one takes more than half."""
    arrays = results(gather)
    users = [u for _, found in arrays for u in found]
    if not users or len(arrays) != 1 or not all(_is_device_slice(u) for u in users):
        return None
    read = max(u.fraction for u in users)
    return read if read <= 0.5 else None


def _is_device_slice(use: Use) -> bool:
    """Whether a reader slices at a place that is computed: fixed slices and lookups of rows are none."""
    user = use.user
    if user.opcode == "fusion":
        opcodes = body_opcodes(user)
        return "dynamic-slice" in opcodes and "gather" not in opcodes
    return user.opcode == "dynamic-slice" and use.operand == 0


def _finding(analyses: Analyses, collective: Collective, found: dict[Instruction, float]) -> Finding:
    each = collective.payload
    read = max(found.values())
    return fold(
        analyses,
        "HS207",
        Severity.WARNING,
        f"{collective.shape} gathered{place_text(collective)}, then sliced",
        [Site(instruction=i, moved=each, saved=round(each * (1 - s))) for i, s in found.items()],
        advice=_ADVICE,
        details=(
            f"{size(each)} arrive on every device each time; nobody reads more than {share(read)} of it",
        ),
        facts={"share_read": read},
    )
