"""One walk over a module's message: refuses what is not sound, and remembers what nothing should walk for again.

Every field of a message that is looked at costs, a million instructions have a million of each: so this is
done once, when a module is made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.errors import UserError

if TYPE_CHECKING:
    from hloscope.hlo import protos

# The fewest operands of instructions whose operands are looked at without asking.
_OPERANDS = {
    "bitcast": 1, "reshape": 1, "copy": 1, "copy-start": 1, "convert": 1, "broadcast": 1, "transpose": 1,
    "reverse": 1, "slice": 1, "dynamic-slice": 1, "gather": 1, "scatter": 1, "dynamic-update-slice": 2,
    "get-tuple-element": 1, "exponential": 1, "while": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What the walk found. Computations and instructions are told by their places in the message.

    `calls` has for every computation that is called, by id, the places (computation, instruction) of its
    callers, and their opcodes. `opcodes` has for every computation, by id, the opcodes in it and in the
    fusions nested in it.
    """

    calls: dict[int, list[tuple[int, int, str]]]
    opcodes: dict[int, frozenset[str]]
    counts: Counter[str]  # instructions by opcode


def index_module(proto: protos.HloModuleProto) -> Index:
    """Walk over a module. Raises UserError where a reference points nowhere, so that nothing has to ask later."""
    ids = {c.id for c in proto.computations}
    if proto.entry_computation_id not in ids:
        raise UserError(
            f"module {proto.name!r} has no entry computation: the file is damaged or no HLO module"
        )
    if len(ids) != len(proto.computations):
        raise UserError(f"module {proto.name!r} has two computations with one id: the file is damaged")
    index = Index(calls={}, opcodes={}, counts=Counter())
    known: dict[frozenset[str], frozenset[str]] = {}  # few are distinct: equal ones are one object
    for place, computation in enumerate(proto.computations):
        within = _index_computation(computation, place, index)
        index.opcodes[computation.id] = known.setdefault(within, within)
    return index


def _index_computation(computation: protos.Computation, place: int, index: Index) -> frozenset[str]:
    """Check a computation's instructions; the opcodes in it, nested fusions included."""
    seen: set[int] = set()
    opcodes: list[str] = []
    nested: list[int] = []
    for number, instruction in enumerate(computation.instructions):
        opcode, operands = instruction.opcode, instruction.operand_ids
        if not seen.issuperset(operands):
            raise UserError(
                f"%{instruction.name} has an operand that does not come before it: the file is damaged"
            )
        if opcode in _OPERANDS and len(operands) < _OPERANDS[opcode]:
            raise UserError(f"%{instruction.name} lacks an operand: the file is damaged")
        callees = instruction.called_computation_ids
        if callees:
            _note_calls(instruction, (place, number, opcode), index)
            if opcode == "fusion":
                nested.extend(callees)
        seen.add(instruction.id)
        opcodes.append(opcode)
    if computation.root_id not in seen or len(seen) != len(opcodes):
        raise UserError(f"computation {computation.name!r} has no root or two instructions with one id")
    index.counts.update(opcodes)
    return frozenset(opcodes).union(*(index.opcodes[callee] for callee in nested))


def _note_calls(instruction: protos.Instruction, where: tuple[int, int, str], index: Index) -> None:
    for callee in instruction.called_computation_ids:
        # Callees come first in a sound module, so this also rules out cycles of calls.
        if callee not in index.opcodes:
            raise UserError(
                f"%{instruction.name} calls a computation that does not come before it: the file is damaged"
            )
        index.calls.setdefault(callee, []).append(where)
