"""HS303: a loop copies its carry in every trip."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.copies import Copy, copies
from hloscope.analysis.place import phase_of
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS303", name="loop-carry-copy", severity=Severity.WARNING)
def loop_carry_copy(analyses: Analyses, *, smallest_bytes: int = 8 << 20) -> Iterable[Finding]:
    """A loop copies a part of its state in every trip, in HBM, without changing anything.

    ## What it does
    Finds copies in loop bodies that leave layout and type alone and whose source is a part of the loop's state, or
    whose result becomes one.

    ## Why is this bad
    The compiler copies the carry where a trip still reads the old value while, or after, the new one is written in
    its place: bytes of the carry times the trips, and a second buffer of its size at the loop's peak.

    ## Example
    ```hlo
    body {
      state = (s32[], f32[4096,4096]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      x = f32[4096,4096] get-tuple-element(state), index=1
      one = s32[] constant(1)
      next = s32[] add(i, one)
      old = f32[4096,4096] copy(x)  // expect: HS303
      new = f32[4096,4096] add(old, x)
      ROOT out = (s32[], f32[4096,4096]) tuple(next, new)
    }
    condition {
      state = (s32[], f32[4096,4096]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      six = s32[] constant(6)
      ROOT less = pred[] compare(i, six), direction=LT
    }
    start = (s32[], f32[4096,4096]) parameter(0)
    ROOT loop = (s32[], f32[4096,4096]) while(start), condition=condition, body=body
    ```

    ## What to do
    Read all that is needed of the old carry before it is replaced; stack what is needed later as an output of the
    scan rather than carrying it twice; do not return the same value as two parts of the carry.

    ## Fix safety
    No automatic fix yet. Reordering reads before a write changes no value.

    ## Options
    - `smallest_bytes`: size of the copy below which it is left alone
    """
    families: dict[tuple[str, str, int | None], list[Copy]] = {}
    for copy in copies(analyses.module):
        callers = copy.instruction.computation.callers
        if not callers or callers[0].opcode != "while" or copy.after.padded_bytes < smallest_bytes:
            continue
        if not copy.relayouts and not copy.converts and (_is_state(copy.source) or _becomes_state(copy)):
            key = (
                copy.after.short,
                phase_of(copy.instruction).value,
                analyses.module.trip_counts[callers[0].id],
            )
            families.setdefault(key, []).append(copy)
    for (shape, phase, trips), found in families.items():
        yield fold(
            analyses,
            "HS303",
            Severity.WARNING,
            f"loop state copied in every trip: {shape}{in_phase(phase)}",
            [Site(instruction=c.instruction, moved=c.bytes, saved=c.bytes) for c in found],
            advice="read all that is needed of the old carry before it is replaced",
            details=(
                f"{size(found[0].bytes)} moved in each of {'an unknown number of' if trips is None else trips} trips",
            ),
            facts={"trips": trips},
        )


def _is_state(value: Instruction) -> bool:
    while value.opcode == "bitcast":
        value = value.operands[0]
    return value.opcode == "get-tuple-element" and value.operands[0].opcode == "parameter"


def _becomes_state(copy: Copy) -> bool:
    return any(u.user.opcode == "tuple" and u.user.is_root for u in copy.uses)
