"""HS401: the weights of the experts are stacked anew in every step."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.grouped import grouped_matmuls
from hloscope.analysis.place import phase_of
from hloscope.analysis.stacking import parts_of_stack
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS401", name="stacked-weights", severity=Severity.WARNING)
def stacked_weights(analyses: Analyses) -> Iterable[Finding]:
    """The weights of a grouped matmul are put together from one parameter for each expert, in every step.

    ## What it does
    Follows the weights [groups, k, n] of every grouped matmul back through casts and layout changes, and reports them
    where a concatenation, or a chain of updates, of several parameters makes them.

    ## Why is this bad
    All expert weights are read and written once more in each step, and the stack is alive beside them; the gradient
    is taken apart again in the backward pass.

    ## Example
    ```hlo
    w0 = bf16[1,1024,2048] parameter(0)
    w1 = bf16[1,1024,2048] parameter(1)
    x = bf16[4096,1024] parameter(2)
    sizes = s32[2] parameter(3)
    w = bf16[2,1024,2048] concatenate(w0, w1), dimensions={0}  // expect: HS401
    ROOT out = bf16[4096,2048] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Keep the experts' weights as one parameter [experts, in, out], and split them for checkpoints only.

    ## Fix safety
    No automatic fix yet. A stack that is kept holds the values that the parts would.
    """
    families: dict[tuple[str, str], dict[int, tuple[Instruction, int]]] = {}
    for matmul in grouped_matmuls(analyses.module):
        for operand in matmul.instruction.operands:
            if len(operand.shape.dimensions) != 3 or operand.shape.dimensions[0] != matmul.groups:
                continue
            stack, parts = parts_of_stack(operand)
            if len(parts) > 1:
                key = (stack.shape.short, phase_of(stack).value)
                families.setdefault(key, {})[stack.id] = (stack, len(parts))
    for (shape, phase), found in families.items():
        stacks = list(found.values())
        once = sum(2 * s.shape.padded_bytes for s, _ in stacks)
        yield fold(
            analyses,
            "HS401",
            Severity.WARNING,
            f"expert weights {shape} stacked from their parts{in_phase(phase)}",
            [
                Site(instruction=s, moved=2 * s.shape.padded_bytes, saved=2 * s.shape.padded_bytes)
                for s, _ in stacks
            ],
            advice="keep the weights of all experts as one parameter",
            details=(f"of {stacks[0][1]} parameters or more; {size(once)} read and written each time",),
            facts={"parts": stacks[0][1]},
        )
