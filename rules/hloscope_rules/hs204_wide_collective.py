"""HS204: a collective moves f32 though the value was, or will be, bf16."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.uses import Use, numbered_results, standing
from hloscope.analysis.widths import narrowed_to, widened_from
from hloscope.analysis.work import shape_text
from hloscope.hlo import Instruction, Shape, async_operation, is_async_start
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, place_text

_MOVING = frozenset({"all-gather", "all-to-all", "collective-permute", "ragged-all-to-all"})
_REDUCING = frozenset({"all-reduce", "reduce-scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wide:
    when: str  # "widened before" or "narrowed after"
    shape: Shape
    payload: int
    bits: int
    narrow: int


@rule(code="HS204", name="wide-collective", severity=Severity.WARNING)
def wide_collective(analyses: Analyses, *, smallest_bytes: int = 1 << 20) -> Iterable[Finding]:
    """A collective moves elements in a wide type that were narrow before it, or are narrowed right after it.

    ## What it does
    Looks at what makes the operand of each collective, and at all that read its result, through copies, layout
    changes and into fusions: a mere conversion from a narrower type before it, or only conversions to one after
    it, means that it could have moved the narrow values. For gathers, permutations and all-to-alls that is a
    warning. For reductions it is a remark: summing in f32 may be meant.

    ## Why is this bad
    Twice the bytes on the wire and twice the buffer, for nothing: a gather of converted values is the conversion
    of gathered values.

    ## Example
    ```hlo
    shard = f32[512,1024] parameter(0)
    all = f32[4096,1024] all-gather(shard), replica_groups=[1,8]<=[8], dimensions={0}  // expect: HS204
    ROOT narrow = bf16[4096,1024] convert(all)
    ```

    ## What to do
    Convert before the collective: cast the parameter, not what was gathered; give a reduction that need not sum
    in f32 its operand in bf16.

    ## Fix safety
    No automatic fix yet. Converting before a gather changes nothing; before a reduction it changes the rounding.

    ## Options
    - `smallest_bytes`: payload below which a collective is left alone
    """
    for collective in analyses.collectives.collectives:
        if collective.opcode not in _MOVING | _REDUCING or collective.form != "opcode":
            continue
        wide = {i: _wide(standing(i)) for i in collective.instructions}
        for when in ("widened before", "narrowed after"):
            found = {i: tuple(p for p in parts if p.when == when) for i, parts in wide.items() if parts}
            sites = {
                i: parts
                for i, parts in found.items()
                if sum(p.payload for p in parts) >= max(smallest_bytes, 1)
            }
            if sites:
                yield _finding(analyses, collective, when, sites)


def _wide(start: Instruction) -> tuple[_Wide, ...]:
    """The arrays of a collective, which may have been put together of several, that are wider than need be."""
    operands = async_operation(start).operands if is_async_start(start.opcode) else start.operands
    arrays = numbered_results(start)
    if len(operands) == 1 < len(arrays):  # one tuple of them all
        return ()
    parts = (_part(operands[n], shape, users) for n, shape, users in arrays if n < len(operands))
    return tuple(p for p in parts if p is not None)


def _part(operand: Instruction, shape: Shape, users: tuple[Use, ...]) -> _Wide | None:
    payload, bits = max(shape.bytes, operand.shape.bytes), shape.element_bits
    source = widened_from(operand)
    if source is not None:
        narrow = source.shape.element_bits
        return _Wide(when="widened before", shape=shape, payload=payload, bits=bits, narrow=narrow)
    after = [narrowed_to(u) for u in users]
    known = [n for n in after if n is not None]
    if not known or len(known) < len(after):
        return None
    return _Wide(when="narrowed after", shape=shape, payload=payload, bits=bits, narrow=max(known))


def _finding(
    analyses: Analyses, collective: Collective, when: str, sites: dict[Instruction, tuple[_Wide, ...]]
) -> Finding:
    parts = next(iter(sites.values()))
    reduces = collective.opcode in _REDUCING
    once = sum(p.payload for p in parts)
    bits, narrow = parts[0].bits, max(p.narrow for p in parts)
    return fold(
        analyses,
        "HS204",
        Severity.INFO if reduces else Severity.WARNING,
        f"{collective.opcode} of {shape_text(*(p.shape for p in parts))}{place_text(collective)}, {when} it",
        [
            Site(
                instruction=i,
                moved=sum(w.payload for w in wide),
                saved=sum(w.payload * (w.bits - w.narrow) // w.bits for w in wide),
                # What else it carries is not saved, nor its time.
                time_share=sum(w.payload * (w.bits - w.narrow) // w.bits for w in wide) / collective.payload,
            )
            for i, wide in sites.items()
        ],
        advice="sum in the narrow type, if its rounding will do"
        if reduces
        else "convert before the collective",
        details=(f"{size(once)} of {bits} bits an element each time; {narrow} would do",),
        facts={"bits": bits, "narrow_bits": narrow, "when": when},
    )
