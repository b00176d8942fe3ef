"""HS309: a loop stacks the gradients of all layers only for the optimizer to read them once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Buffer
from hloscope.analysis.stacking import LoopStack, loop_stacks
from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction, Module
from hloscope.rule import Finding, Severity, rule
from hloscope.units import plural
from hloscope_rules._family import Site, fold
from hloscope_rules._peak import of_peak

# What an optimizer does not do with the gradient of one parameter alone.
_NOT_AN_UPDATE = frozenset(
    {"dot", "convolution", "reduce", "reduce-window", "scatter", "gather", "sort", "custom-call", "while"}
)


_PASSING = frozenset({"bitcast", "copy", "get-tuple-element"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A stack and what reads it behind the loop."""

    stack: LoopStack
    readers: tuple[Instruction, ...]


@rule(code="HS309", name="waiting-gradients", severity=Severity.WARNING, needs="memory")
def waiting_gradients(analyses: Analyses, *, share_of_peak: float = 0.005) -> Iterable[Finding]:
    """The gradients of all layers wait for the loop over the layers to end, only to be read once by the optimizer.

    ## What it does
    Finds stacks that a loop fills slot by slot, of which every reader behind the loop is elementwise work that writes
    a result of the same elements into the memory of a donated argument: the update of a parameter or of its moment.
    They must be alive at the peak.

    ## Why is this bad
    A stack of gradients is as large as all layers' parameters, in the gradient's type, and is alive through the whole
    backward pass. The update of one layer needs only the gradient of that layer, so that each trip of the loop could
    do it right there: then no stack is made, and each layer's new values take the place of the old ones.

    ## Example
    ```hlo
    HloModule waiting, input_output_alias={ {}: (0, {}, may-alias) }
    body {
      state = (s32[], f32[6,512,1024], f32[1,512,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      stack = f32[6,512,1024] get-tuple-element(state), index=1
      x = f32[1,512,1024] get-tuple-element(state), index=2
      one = s32[] constant(1)
      zero = s32[] constant(0)
      next = s32[] add(i, one)
      grad = f32[1,512,1024] exponential(x)
      filled = f32[6,512,1024] dynamic-update-slice(stack, grad, i, zero, zero)  // expect: HS309
      ROOT out = (s32[], f32[6,512,1024], f32[1,512,1024]) tuple(next, filled, grad)
    }
    condition {
      state = (s32[], f32[6,512,1024], f32[1,512,1024]) parameter(0)
      i = s32[] get-tuple-element(state), index=0
      six = s32[] constant(6)
      ROOT less = pred[] compare(i, six), direction=LT
    }
    ENTRY main {
      old = f32[6,512,1024] parameter(0)
      x = f32[1,512,1024] parameter(1)
      zero = s32[] constant(0)
      nothing = f32[] constant(0)
      empty = f32[6,512,1024] broadcast(nothing), dimensions={}
      start = (s32[], f32[6,512,1024], f32[1,512,1024]) tuple(zero, empty, x)
      loop = (s32[], f32[6,512,1024], f32[1,512,1024]) while(start), condition=condition, body=body
      grads = f32[6,512,1024] get-tuple-element(loop), index=1
      ROOT new = f32[6,512,1024] subtract(old, grads)
    }
    ```

    ## What to do
    Update each layer where its gradient is made: a scan of your own over the layers in the backward pass, with the
    parameters and moments in its carry. An optimizer that clips by the norm of all gradients cannot do that: it needs
    them all before the first update.

    ## Fix safety
    The command `apply-rules` does so where it proves that the update keeps layers apart and that nobody reads the old
    values after the loop. It computes the same values; devices may add a gradient up in another order, so the last bit
    may differ.

    ## Options
    - `share_of_peak`: part of the peak below which the stacks of a loop are left alone
    """
    peak = analyses.memory.peak_bytes
    if not peak:
        return
    found = _at_peak(analyses)
    for loop in dict.fromkeys(w.stack.loop for w, _ in found):
        here = [(w, buffer) for w, buffer in found if w.stack.loop is loop]
        held = sum(buffer.bytes for _, buffer in here)
        if held >= share_of_peak * peak:
            yield _finding(analyses, [w for w, _ in here], held)


def _at_peak(analyses: Analyses) -> list[tuple[_Waiting, Buffer]]:
    """The stacks that are alive at the peak, each with its buffer there."""
    found: list[tuple[_Waiting, Buffer]] = []
    temps = [b for b in analyses.memory.buffers_at_peak if b.kind == "temp"]
    for waiting in _waiting(analyses.module):
        for buffer in temps:
            if buffer.instruction is not None and waiting.stack.lies_in(
                buffer.instruction, buffer.shape_index
            ):
                found.append((waiting, buffer))
                break
    return found


def _waiting(module: Module) -> Iterator[_Waiting]:
    replaced = _replaced(module)
    for stack in loop_stacks(module):
        readers = tuple(use.user for use in stack.uses)
        if readers and all(r.id in replaced and _is_update(r) for r in readers):
            yield _Waiting(stack=stack, readers=readers)


def _replaced(module: Module) -> frozenset[int]:
    """Ids of what makes the results that lie in the memory of arguments."""
    root = module.entry.root
    found: set[int] = set()
    for entry in module.proto.input_output_alias.entries:
        index = entry.output_shape_index
        if index and not (root.opcode == "tuple" and index[0] < len(root.operands)):
            continue
        made = root.operands[index[0]] if index else root
        while made.opcode in _PASSING and made.operands:
            made = made.operands[0]
        found.add(made.id)
    return frozenset(found)


def _is_update(reader: Instruction) -> bool:
    opcodes = body_opcodes(reader) if reader.opcode == "fusion" else {reader.opcode}
    return _NOT_AN_UPDATE.isdisjoint(opcodes)


def _finding(analyses: Analyses, waiting: list[_Waiting], held: int) -> Finding:
    first = max(waiting, key=lambda w: w.stack.slot.bytes)
    loop, reader = first.stack.loop, first.readers[0]
    return fold(
        analyses,
        "HS309",
        Severity.WARNING,
        f"gradients of {plural(len(waiting), 'stacked parameter')} wait for the optimizer until the loop ends",
        [Site(instruction=w.stack.update, moved=None, saved=None, also=w.readers) for w in waiting],
        advice="update each layer in the loop, where its gradient is made",
        details=(
            f"{of_peak(analyses, held)}; the largest is {first.stack.slot.short} of each trip of %{loop.name},"
            f" read once, by %{reader.name}",
        ),
        facts={"loop": loop.name, "stacks": len(waiting)},
        held=held,
        fix="safe",
    )
