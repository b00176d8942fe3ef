"""HS304: an argument was donated, but no output lies in its memory."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.hlo import Instruction, Shape
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold


@rule(code="HS304", name="unused-donation", severity=Severity.WARNING, needs="schedule")
def unused_donation(analyses: Analyses, *, smallest_bytes: int = 1 << 20) -> Iterable[Finding]:
    """An argument is donated to the step, but no output takes over its memory.

    ## What it does
    Compares the module's list of donated buffers with its aliases of inputs and outputs, and reports donated arguments
    that alias nothing. A module without a schedule is left alone: the compiler has not given out memory yet.

    ## Why is this bad
    The memory is given up and yet not used again: the new value has a buffer of its own beside the old one, all
    through the step. An optimizer state that fails to alias costs its size once more.

    ## Example
    ```hlo
    HloModule donated, is_scheduled=true, buffer_donor={ (0, {}) }, input_output_alias={ {1}: (1, {}, may-alias) }
    ENTRY main {
      old = f32[1024,1024] parameter(0)  // expect: HS304
      kept = f32[1024,1024] parameter(1)
      new = bf16[1024,1024] convert(old)
      sum = f32[1024,1024] negate(kept)
      ROOT out = (bf16[1024,1024], f32[1024,1024]) tuple(new, sum)
    }
    ```

    ## What to do
    Return the new value with the argument's shape, type, sharding and layout (an output sharding that differs is the
    usual reason), or do not donate what the step does not replace.

    ## Fix safety
    No automatic fix yet. Donation changes where values lie, not what they are.

    ## Options
    - `smallest_bytes`: size of an argument below which it is left alone
    """
    if not analyses.module.is_scheduled:
        return  # before optimization nothing is aliased yet
    proto = analyses.module.proto
    aliased = {(e.parameter_number, tuple(e.parameter_shape_index)) for e in proto.input_output_alias.entries}
    families: dict[str, list[tuple[Instruction, Shape]]] = {}
    parameters = analyses.module.entry.parameters
    for donor in proto.buffer_donor.entries:
        place = (donor.parameter_number, tuple(donor.parameter_shape_index))
        if place in aliased or not 0 <= place[0] < len(parameters):
            continue
        shape = parameters[place[0]].shape.at(place[1])
        if shape.padded_bytes >= smallest_bytes:
            families.setdefault(shape.short, []).append((parameters[place[0]], shape))
    for shape, found in families.items():
        held = sum(s.padded_bytes for _, s in found)
        names = ", ".join(dict.fromkeys(p.op_name or f"parameter {p.parameter_number}" for p, _ in found))
        yield fold(
            analyses,
            "HS304",
            Severity.WARNING,
            f"donated {shape} that no output takes over",
            [Site(instruction=p, moved=None, saved=None) for p, _ in found],
            advice="return it with the same shape, type and sharding, or do not donate it",
            details=(f"{names}: {size(held)} given up and not used again",),
            held=held,
        )
