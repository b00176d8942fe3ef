"""One walk over a module's message: refuses what is not sound, and remembers what nothing should walk for again.

Every field of a message that is looked at costs, a million instructions have a million of each: so this is
done once, when a module is made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.hlo.instruction import Computation, Instruction

if TYPE_CHECKING:
    from hloscope.hlo import protos
    from hloscope.hlo.module import Module

# The fewest operands of instructions whose operands are looked at without asking.
_OPERANDS = {
    "bitcast": 1, "reshape": 1, "copy": 1, "copy-start": 1, "convert": 1, "broadcast": 1, "transpose": 1,
    "reverse": 1, "slice": 1, "dynamic-slice": 1, "gather": 1, "scatter": 1, "dynamic-update-slice": 2,
    "get-tuple-element": 1, "exponential": 1, "while": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What the walk found.

    `calls` has for every computation that is called, by id, its callers. `opcodes` has for every computation, by
    id, the opcodes in it and in the fusions nested in it, `nested` the bodies of these fusions where there are any.
    """

    computations: dict[int, Computation]  # by id, in the module's order
    calls: dict[int, list[Instruction]]
    opcodes: dict[int, frozenset[str]]
    nested: dict[int, list[Computation]]
    counts: Counter[str]  # instructions by opcode


def index_module(proto: protos.HloModuleProto, module: Module) -> Index:
    """Walk over a module. Raises UserError where a reference points nowhere, so that nothing has to ask later."""
    ids = {c.id for c in proto.computations}
    if proto.entry_computation_id not in ids:
        raise UserError(
            f"module {proto.name!r} has no entry computation: the file is damaged or no HLO module"
        )
    if len(ids) != len(proto.computations):
        raise UserError(f"module {proto.name!r} has two computations with one id: the file is damaged")
    index = Index(computations={}, calls={}, opcodes={}, nested={}, counts=Counter())
    known: dict[frozenset[str], frozenset[str]] = {}  # few are distinct: equal ones are one object
    opcodes: list[str] = []
    for message in proto.computations:
        computation = Computation(message, module, index.computations)
        within = _index_computation(computation, index, opcodes)
        index.opcodes[computation.id] = known.setdefault(within, within)
        index.computations[computation.id] = computation
    index.counts.update(opcodes)
    return index


def _index_computation(computation: Computation, index: Index, all_opcodes: list[str]) -> frozenset[str]:
    """Check a computation's instructions; the opcodes in it, nested fusions included."""
    instructions = computation.instructions
    opcodes = [i.opcode for i in instructions]
    all_opcodes += opcodes
    within = frozenset(opcodes)
    if not within.isdisjoint(_OPERANDS):
        for instruction in instructions:
            if len(instruction.operands) < _OPERANDS.get(instruction.opcode, 0):
                raise UserError(f"%{instruction.name} lacks an operand: the file is damaged")
    nested: list[Computation] = []
    for caller in [i for i in instructions if i.called_computations]:
        for callee in caller.called_computations:
            index.calls.setdefault(callee.id, []).append(caller)
        if caller.opcode == "fusion":
            nested += caller.called_computations
    if nested:
        index.nested[computation.id] = nested
        within = within.union(*[index.opcodes[c.id] for c in nested])
    return within
