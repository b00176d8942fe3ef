"""Who really uses a value: its users seen through what only passes it on, and how much of it each one reads."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.analysis.fusion_use import body_use
from hloscope.hlo import Instruction, Shape, async_operation, is_async_part, is_async_start, start_of

# One value in, the same one out, as a part of a tuple or in another layout.
_PASSING = frozenset(
    {"bitcast", "reshape", "get-tuple-element", "optimization-barrier", "copy", "add-dependency"}
)
_MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A user of a value, which takes it (or what passes it on) as its operand number `operand`."""

    user: Instruction
    operand: int

    @property
    def value(self) -> Instruction:
        """The operand, as it reaches the user."""
        return self.user.operands[self.operand]

    @property
    def fraction(self) -> float:
        """The share of the operand that the user reads, 0 to 1; 1 where that is not known."""
        user = self.user
        if user.opcode == "fusion":
            reads = body_use(user).reads
            return reads[self.operand] if self.operand < len(reads) else 1.0
        if user.opcode in ("slice", "dynamic-slice") and self.operand == 0 and self.value.shape.elements:
            return user.shape.elements / self.value.shape.elements
        return 1.0


def uses(value: Instruction) -> tuple[Use, ...]:
    """Every use of a value within its computation, behind copies, bitcasts, tuple elements and the ends of
    asynchronous operations. A root tuple, a loop, a call count as users."""
    found: dict[tuple[int, int], Use] = {}
    waiting, seen = [value], {value.id}
    while waiting and len(seen) < _MOST:
        current = waiting.pop()
        for user in current.users:
            if _passes(user, current):
                if user.id not in seen:
                    seen.add(user.id)
                    waiting.append(user)
                continue
            for number, operand in enumerate(user.operands):
                if operand is current:
                    found[user.id, number] = Use(user=user, operand=number)
    return tuple([found[place] for place in sorted(found)])


def taker(user: Instruction) -> Instruction:
    """Who reads what a tuple carries: the loop, call or conditional that takes the tuple, where one does."""
    while user.opcode == "tuple" and len(user.users) == 1:
        user = user.users[0]
    return user


def uses_of_part(value: Instruction, index: tuple[int, ...]) -> tuple[Use, ...]:
    """The uses of the part of a value at a shape index, of one level; of all of it where there are more levels."""
    if len(index) != 1 or not value.shape.is_tuple or is_async_start(value.opcode):
        return uses(value)
    parts = [u for u in value.users if u.opcode == "get-tuple-element" and u.tuple_index == index[0]]
    whole = [u for u in value.users if u.opcode != "get-tuple-element"]
    return tuple(u for p in parts for u in uses(p)) + tuple(Use(user=w, operand=0) for w in whole)


def _passes(user: Instruction, value: Instruction) -> bool:
    if user.opcode in _PASSING:
        return True
    if user.opcode == "copy-start":
        return True
    return is_async_part(user.opcode) and start_of(user) is start_of(value)


def standing(instruction: Instruction) -> Instruction:
    """The asynchronous start or call around an instruction, as it stands in the step; else the instruction."""
    current = instruction
    while len(callers := [c for c in current.computation.callers if not is_async_part(c.opcode)]) == 1:
        if callers[0].opcode not in ("call", "async-start"):
            break
        current = callers[0]
    return current


def results(work: Instruction) -> tuple[tuple[Shape, tuple[Use, ...]], ...]:
    """Each array that an instruction of the step gives (at its done where it is asynchronous), with its uses."""
    return tuple((shape, found) for _, shape, found in numbered_results(work))


def numbered_results(work: Instruction) -> tuple[tuple[int, Shape, tuple[Use, ...]], ...]:
    """As `results`, with the number of each array in the tuple that they are; what nobody reads is not among them."""
    end = async_operation(work).done if is_async_start(work.opcode) else work
    if end is None:
        return ()
    if not end.shape.is_tuple:
        return ((0, end.shape, uses(end)),)
    elements = (u for u in end.users if u.opcode == "get-tuple-element")
    return tuple((e.tuple_index or 0, e.shape, uses(e)) for e in elements if e.shape.is_array)
