"""The order in which a step's instructions run, loops and calls flattened once, as the compiler counts it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hloscope.hlo import (
    Computation,
    Instruction,
    Module,
    async_operation,
    is_async_part,
    is_async_start,
    once_per_module,
    start_of,
)

# How many instructions that only hand a value on to follow one after another.
_DEEPEST = 12
# What may hand a value on, besides the parts of asynchronous operations.
_FORWARDING = frozenset({"get-tuple-element", "tuple", "bitcast"})

_Place = tuple[Instruction, tuple[int, ...]]  # an instruction's result at a shape index


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Schedule positions of the instructions that run one by one.

    A called computation stands before the instruction that calls it (a loop's condition before its body),
    an asynchronous one before the start or update that first has operands: the compiler's own count.
    """

    instructions: tuple[Instruction, ...]  # by position
    positions: Mapping[int, int]  # by instruction id
    spans: Mapping[int, tuple[int, int]]  # first position and position after the last, by computation id

    def find(self, instruction_id: int) -> Instruction | None:
        """The instruction of that id, or None where it has no position."""
        position = self.positions.get(instruction_id)
        return None if position is None else self.instructions[position]

    def begin(self, instruction: Instruction) -> int:
        """Where an instruction's value comes to life; a parameter's where its computation begins."""
        if instruction.opcode == "parameter":
            return self.spans[instruction.computation.id][0]
        return self.positions[instruction.id]


class LastUses:
    """Finds where a value is read last, following it within its computation through tuples and
    asynchronous operations."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._elements: dict[int, dict[int, list[Instruction]]] = {}

    def of(self, instruction: Instruction, index: tuple[int, ...]) -> int:
        """The last position that reads an instruction's result at a shape index: the caller's where the
        value is (part of) what its computation returns."""
        last = self._order.begin(instruction)
        work: Iterable[_Place] = ((instruction, index),)
        for _ in range(_DEEPEST):
            following: dict[tuple[int, tuple[int, ...]], _Place] = {}
            for current, at in work:
                if current is current.computation.root:
                    last = max(last, self._returned_at(current))
                for user in self._users(current, at):
                    last = max(last, self._read_at(user, at))
                    if user.opcode in _FORWARDING or is_async_part(user.opcode):
                        for place in _forwarded(user, at):
                            following[place[0].id, place[1]] = place
            if not following:
                break
            work = following.values()
        return last

    def _users(self, instruction: Instruction, index: tuple[int, ...]) -> Sequence[Instruction]:
        """The users that could read the value; of the many elements of a loop's state only the right ones."""
        if not index:
            return instruction.users
        by_element = self._elements.get(instruction.id)
        if by_element is None:
            by_element = self._elements[instruction.id] = {}
            for user in instruction.users:
                by_element.setdefault(-1 if user.tuple_index is None else user.tuple_index, []).append(user)
        return by_element.get(index[0], []) + by_element.get(-1, [])

    def _returned_at(self, root: Instruction) -> int:
        return min(self._order.spans[root.computation.id][1], len(self._order.instructions) - 1)

    def _read_at(self, user: Instruction, index: tuple[int, ...]) -> int:
        """Where the user has read the value: nowhere (-1) if it only hands it on, before the condition for a
        loop's state, at the done of an asynchronous operation."""
        if user.opcode == "tuple" or (user.opcode == "get-tuple-element" and index):
            return -1
        if user.opcode == "while" and len(user.called_computations) > 1:
            return self._order.spans.get(user.called_computations[1].id, (-1, -1))[0] - 1
        if is_async_start(user.opcode) or user.opcode == "async-update":
            user = async_operation(start_of(user)).done or user
        return self._order.positions.get(user.id, -1)


def _forwarded(user: Instruction, index: tuple[int, ...]) -> list[_Place]:
    """Where the value is found in the user's result, if the user hands it on."""
    opcode = user.opcode
    if opcode == "get-tuple-element":
        return [(user, index[1:])] if index else []
    if opcode == "tuple":
        # As a part of the tuple: which one matters not to the loop, call or result that takes it whole.
        return [(user, ())]
    if is_async_part(opcode) and opcode != "async-update":
        produced = 0 if opcode == "copy-done" else 1
        return [(user, index[1:])] if index[:1] == (produced,) else []
    return [(user, index)] if opcode in ("bitcast", "async-update") else []


@once_per_module
def flat_order(module: Module) -> Order:
    """The flattened order of a module: of its schedule, or of its text where it has none."""
    instructions: list[Instruction] = []
    positions: dict[int, int] = {}
    spans: dict[int, tuple[int, int]] = {}
    begun = {module.entry.id}
    # A stack of our own: computations may nest deeper than Python's.
    stack = [(module.entry, 0, _steps(module.entry))]
    while stack:
        computation, first, steps = stack[-1]
        step = next(steps, None)
        if step is None:
            spans[computation.id] = (first, len(instructions))
            stack.pop()
        elif isinstance(step, Instruction):
            positions[step.id] = len(instructions)
            instructions.append(step)
        elif step.id not in begun:
            begun.add(step.id)
            stack.append((step, len(instructions), _steps(step)))
    return Order(instructions=tuple(instructions), positions=positions, spans=spans)


def _steps(computation: Computation) -> Iterator[Instruction | Computation]:
    """The instructions of a computation in their order, each after the computations that it runs."""
    for instruction in computation.schedule:
        opcode = instruction.opcode
        if opcode == "while":
            yield from reversed(instruction.called_computations[:2])
        elif opcode in ("call", "conditional") or (opcode == "async-start" and instruction.operands):
            yield from instruction.called_computations
        elif opcode == "async-update":
            yield from start_of(instruction).called_computations
        yield instruction
