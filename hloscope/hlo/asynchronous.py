"""Asynchronous operations: a start, its updates and its done, seen as the one piece of work that they are.

Three spellings occur: `X-start`/`X-done`, `async-start`/`async-update`/`async-done` around a called
computation (in which a further `call` or asynchronous pair may stand), and the same under names with
`call-start`. Operands may be bound at the start or only at an update.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.hlo.memo import once_for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.hlo.instruction import Computation, Instruction

_DEEPEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOperation:
    """One asynchronous operation of a computation.

    `work` is the instruction that does it: the start itself for `copy-start` and the like, the innermost
    instruction of the called computation for `async-start`. `opcode` is the work's, without `-start`.
    `operands` are instructions of the start's computation. `done` is None where the module has none.
    """

    start: Instruction
    updates: tuple[Instruction, ...]
    done: Instruction | None
    work: Instruction
    opcode: str
    operands: tuple[Instruction, ...]
    thread: str | None


@lru_cache(maxsize=1024)
def is_async_start(opcode: str) -> bool:
    """Whether an opcode begins an asynchronous operation."""
    return opcode.endswith("-start")


@lru_cache(maxsize=1024)
def is_async_part(opcode: str) -> bool:
    """Whether an opcode only continues or ends an asynchronous operation, doing no work of its own."""
    return opcode == "async-update" or opcode.endswith("-done")


def async_operations(computation: Computation) -> Iterator[AsyncOperation]:
    """The asynchronous operations that start in a computation, in proto order."""
    for instruction in computation.instructions:
        if is_async_start(instruction.opcode):
            yield async_operation(instruction)


@once_for_each
def async_operation(start: Instruction) -> AsyncOperation:
    """The operation that an asynchronous start begins."""
    updates: list[Instruction] = []
    operands = list(start.operands)
    current, done = start, None
    for _ in range(_DEEPEST):
        following = next((u for u in current.users if _continues(u, current)), None)
        if following is None:
            break
        if following.opcode != "async-update":
            done = following
            break
        operands += [o for o in following.operands if o is not current]
        updates.append(following)
        current = following
    work = work_of(start)
    return AsyncOperation(
        start=start,
        updates=tuple(updates),
        done=done,
        work=work,
        opcode=work.opcode.removesuffix("-start"),
        operands=tuple(operands),
        thread=start.execution_thread or work.computation.execution_thread,
    )


def start_of(part: Instruction) -> Instruction:
    """The start that a done or an update belongs to; the instruction itself where it is neither."""
    for _ in range(_DEEPEST):
        if not is_async_part(part.opcode) or not part.operands:
            return part
        part = part.operands[0]
    return part


@once_for_each
def work_of(start: Instruction) -> Instruction:
    """The instruction that does the work of an `async-start` or `call`: the root within, followed to the end."""
    work = start
    for _ in range(_DEEPEST):
        if work.opcode in ("async-start", "call") and work.called_computations:
            work = work.called_computations[0].root
        elif is_async_part(work.opcode):
            work = start_of(work)
        elif work.opcode in ("bitcast", "get-tuple-element") and work.operands and work is not start:
            work = work.operands[0]
        else:
            return work
    return work


def _continues(user: Instruction, current: Instruction) -> bool:
    return is_async_part(user.opcode) and bool(user.operands) and user.operands[0] is current
