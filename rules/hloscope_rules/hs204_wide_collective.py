"""HS204: a collective moves f32 though the value was, or will be, bf16."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.collectives import Collective
from hloscope.analysis.uses import results, standing
from hloscope.analysis.widths import narrowed_to, widened_from
from hloscope.hlo import Instruction, async_operation, is_async_start
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, axes_text, fold

_MOVING = frozenset({"all-gather", "all-to-all", "collective-permute", "ragged-all-to-all"})
_REDUCING = frozenset({"all-reduce", "reduce-scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wide:
    when: str  # "widened before" or "narrowed after"
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
        found = {i: _wide(standing(i)) for i in collective.instructions}
        sites = {i: w for i, w in found.items() if w is not None and w.payload >= smallest_bytes}
        if sites:
            yield _finding(analyses, collective, sites)


def _wide(start: Instruction) -> _Wide | None:
    operands = async_operation(start).operands if is_async_start(start.opcode) else start.operands
    arrays = results(start)
    if len(operands) != 1 or len(arrays) != 1:
        return None
    shape, users = arrays[0]
    payload = max(shape.bytes, operands[0].shape.bytes)
    source = widened_from(operands[0])
    if source is not None:
        narrow = source.shape.element_bits
        return _Wide(when="widened before", payload=payload, bits=shape.element_bits, narrow=narrow)
    after = [narrowed_to(u) for u in users]
    known = [bits for bits in after if bits is not None]
    if not known or len(known) < len(after):
        return None
    return _Wide(when="narrowed after", payload=payload, bits=shape.element_bits, narrow=max(known))


def _finding(analyses: Analyses, collective: Collective, sites: dict[Instruction, _Wide]) -> Finding:
    first = next(iter(sites.values()))
    reduces = collective.opcode in _REDUCING
    return fold(
        analyses,
        "HS204",
        Severity.INFO if reduces else Severity.WARNING,
        f"{collective.opcode} of {collective.shape} over {axes_text(collective)} {collective.phase},"
        f" {first.when} it",
        [
            Site(instruction=i, moved=w.payload, saved=w.payload * (w.bits - w.narrow) // w.bits)
            for i, w in sites.items()
        ],
        advice="sum in the narrow type, if its rounding will do"
        if reduces
        else "convert before the collective",
        details=(
            f"{size(first.payload)} of {first.bits} bits an element each time; {first.narrow} would do",
        ),
        facts={"bits": first.bits, "narrow_bits": first.narrow, "when": first.when},
    )
