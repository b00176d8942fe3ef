"""What the rules on copies share: the kernels on either side of a copy."""

from __future__ import annotations

from hloscope.analysis.copies import Copy
from hloscope.analysis.matmuls import kernel_name
from hloscope.analysis.work import COLLECTIVES, is_plumbing
from hloscope.hlo import Instruction, is_async_part, is_async_start, start_of, work_of

_ON_THE_WAY = COLLECTIVES | {"copy", "transpose"}


def work_behind(instruction: Instruction) -> Instruction:
    """What does the work of an instruction of the step, asynchronous or not."""
    if is_async_part(instruction.opcode) or is_async_start(instruction.opcode):
        return work_of(start_of(instruction))
    return instruction


def kernels_at(copy: Copy) -> tuple[str, ...]:
    """The names of the custom calls that a copy is for, or, if it goes to none, of the one it comes from.

    A copy on the way to a collective is that one's cause (see HS201), not the kernel's.
    """
    users = [work_behind(u.user) for u in copy.uses]
    after = dict.fromkeys(kernel_name(u) for u in users if _is_kernel(u))
    if after or any(u.opcode in _ON_THE_WAY for u in users):
        return tuple(after)
    source = copy.source
    while source.opcode in ("bitcast", "get-tuple-element") and source.operands:
        source = source.operands[0]
    source = work_behind(source)
    return (kernel_name(source),) if _is_kernel(source) else ()


def _is_kernel(work: Instruction) -> bool:
    return work.opcode == "custom-call" and not is_plumbing(work)
