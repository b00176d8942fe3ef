"""Operands before users, callees before callers: the order that a module's message must have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hloscope.hlo import protos
from hloscope.hlo.instruction import CALL_NOTHING
from hloscope.hlo.text_scan import MalformedError


def order_instructions(computation: protos.Computation) -> None:
    """Sort a computation's instructions, operands first. Raises MalformedError where they form a cycle."""
    by_id = {i.id: i for i in computation.instructions}
    before = {i.id: [*i.operand_ids[:], *i.control_predecessor_ids[:]] for i in computation.instructions}
    order, cycle = _sorted(before)
    if cycle is not None:
        raise MalformedError(f"%{by_id[cycle].name} is an operand of itself, in a cycle")
    if order != list(by_id):
        ordered = [by_id[number] for number in order]
        sorted_ = protos.Computation(instructions=ordered)
        del computation.instructions[:]
        computation.MergeFrom(sorted_)


def order_computations(module: protos.HloModuleProto) -> None:
    """Sort a module's computations, callees first. Raises MalformedError where one calls itself."""
    by_id = {c.id: c for c in module.computations}
    before = {
        c.id: [
            callee
            for i in c.instructions
            if i.opcode not in CALL_NOTHING
            for callee in i.called_computation_ids[:]
        ]
        for c in module.computations
    }
    order, cycle = _sorted(before)
    if cycle is not None:
        raise MalformedError(f"%{by_id[cycle].name} calls itself, in a cycle")
    place = {number: i for i, number in enumerate(order)}
    if order != list(by_id):
        module.computations.sort(key=lambda c: place[c.id])


def _sorted(before: Mapping[int, Iterable[int]]) -> tuple[list[int], int | None]:
    """The keys, each after all that must come before it, else as they are; and a key on a cycle, or None."""
    order: list[int] = []
    state: dict[int, bool] = {}  # False while what comes before is being placed, True when placed
    for start in before:
        if start in state:
            continue
        state[start] = False
        open_ = [(start, iter(before[start]))]
        while open_:
            number, rest = open_[-1]
            for earlier in rest:
                if state.get(earlier) is False:
                    return order, earlier
                if earlier not in state:
                    state[earlier] = False
                    open_.append((earlier, iter(before[earlier])))
                    break
            else:
                state[number] = True
                order.append(number)
                open_.pop()
    return order, None
