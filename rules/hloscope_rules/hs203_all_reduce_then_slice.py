"""HS203: a whole array is all-reduced and then each device keeps a slice of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.uses import Use, results, standing
from hloscope.analysis.work import shape_text
from hloscope.hlo import Instruction, Shape
from hloscope.rule import Finding, Severity, rule
from hloscope.units import share, size
from hloscope_rules._family import Site, fold, place_text

# A ring's reduce-scatter sends half of what its all-reduce sends.
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sliced:
    """A result of an all-reduce and the largest share that anybody reads of it."""

    shape: Shape
    share: float
    readers: tuple[Instruction, ...]


@rule(code="HS203", name="all-reduce-then-slice", severity=Severity.WARNING)
def all_reduce_then_slice(analyses: Analyses, *, smallest_bytes: int = 1 << 20) -> Iterable[Finding]:
    """An array is all-reduced in full though each device then reads only a slice of it.

    ## What it does
    Follows the results of every all-reduce to whatever reads them, through copies, bitcasts, tuples and
    asynchronous ends, and reports those of which every reader takes a slice, alone or within its fusion.

    ## Why is this bad
    A ring all-reduce is a reduce-scatter and an all-gather: it sends twice the bytes, and the second half brings
    every device what it throws away. The full array also has a buffer of its own. The gradients of parameters
    that are sharded over the same axis (FSDP) are the usual case: the embedding, attention projections.

    ## Example
    ```hlo
    add {
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT sum = f32[] add(a, b)
    }
    grad = f32[4096,1024] parameter(0)
    mine = s32[] parameter(1)
    zero = s32[] constant(0)
    all = f32[4096,1024] all-reduce(grad), replica_groups=[1,8]<=[8], to_apply=add  // expect: HS203
    ROOT part = f32[512,1024] dynamic-slice(all, mine, zero), dynamic_slice_sizes={512,1024}
    ```

    ## What to do
    Let the gradient be reduced into its shard: give it its parameter's sharding where it is made (`shard_map` with
    `psum_scatter`, or `with_sharding_constraint` on the gradient before the optimizer), or fuse the parameter's
    use so that the compiler finds the pattern itself; its reduce-scatter pass gives up on layouts that would pad
    and on gradients that are also read in full.

    ## Fix safety
    No automatic fix yet. A reduce-scatter adds the same numbers, perhaps in another order.

    ## Options
    - `smallest_bytes`: sliced bytes below which an all-reduce is left alone
    """
    for collective in analyses.collectives.collectives:
        if collective.opcode != "all-reduce" or collective.form != "opcode":
            continue
        found = {i: tuple(_sliced(standing(i))) for i in collective.instructions}
        found = {
            i: parts
            for i, parts in found.items()
            if sum(p.shape.bytes for p in parts) >= max(smallest_bytes, 1)
        }
        if found:
            yield _finding(analyses, collective, found)


def _sliced(start: Instruction) -> Iterator[_Sliced]:
    for shape, users in results(start):
        share = max((u.fraction for u in users), default=1.0)
        if share <= 0.5 and all(_slices(u) for u in users):
            yield _Sliced(shape=shape, share=share, readers=tuple(u.user for u in users))


def _slices(use: Use) -> bool:
    return use.user.opcode in ("fusion", "dynamic-slice", "slice")


def _finding(
    analyses: Analyses, collective: Collective, found: dict[Instruction, tuple[_Sliced, ...]]
) -> Finding:
    parts = next(iter(found.values()))
    read = max(p.share for p in parts)
    sites = [
        Site(
            instruction=i,
            moved=sum(p.shape.bytes for p in sliced),
            saved=round(sum(p.shape.bytes * (1 - p.share) for p in sliced)),
            also=tuple(r for p in sliced for r in p.readers),
            time_share=_HALF,
        )
        for i, sliced in found.items()
    ]
    once = sum(p.shape.bytes for p in parts)
    shapes = shape_text(*(p.shape for p in parts))
    return fold(
        analyses,
        "HS203",
        Severity.WARNING,
        f"{shapes} all-reduced{place_text(collective)}, then sliced",
        sites,
        advice="reduce-scatter it: shard the gradient like its parameter where it is made",
        details=(
            f"{size(once)} arrive on every device each time; nobody reads more than {share(read)} of it",
            f"read by %{parts[0].readers[0].name}",
        ),
        facts={
            "mesh_axes": list(collective.mesh_axes) if collective.mesh_axes else None,
            "group_size": collective.group_size,
            "share_read": read,
        },
    )
