"""Kernels by name, and which instructions are matrix products or stand right beside one."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.analysis.work import body_opcodes
from hloscope.hlo import is_async_part, start_of, work_of

if TYPE_CHECKING:
    from hloscope.hlo import Instruction

# How many instructions that only move a value to look through.
_DEEPEST = 50

# What the compiler adds to a name: numbers, copies, rematerialization, and the kernel argument that it feeds.
_SUFFIX = re.compile(r"(\.(clone|cloned|remat)?\d*)*(\.kernel_args_.*)?$")
# Shapes and tiles that a kernel writes into its name: `gmm_v2-g_32-m_32768-tm_512`, `ragged-dot-none`.
_PARAMETERS = re.compile(r"(-[a-z]+_\w+)+$|-none$")
_GROUPED_KERNEL = re.compile(
    r"^t?gmm(_|$|\d)|^ragged[-_]dot(?![-_]metadata)|grouped_mat_?mul|megablox", re.IGNORECASE
)


def kernel_name(call: Instruction) -> str:
    """The name of a custom call's kernel, without numbers, tiles and compiler suffixes; of a call that is no
    Pallas kernel its target."""
    return _kernel_name(call.name, call.custom_call_target or "")


@lru_cache(maxsize=2**16)
def _kernel_name(written: str, target: str) -> str:
    name = _PARAMETERS.sub("", _SUFFIX.sub("", written))
    if target in ("tpu_custom_call", "mosaic_gpu", "__gpu$xla.gpu.triton") and name != "custom-call":
        return name
    return target or name


def is_matmul(instruction: Instruction) -> bool:
    """Whether an instruction is a matrix product: a dot, a convolution, a fusion of one, or a grouped one."""
    opcode = instruction.opcode
    if opcode == "fusion" and instruction.called_computations:
        return not body_opcodes(instruction).isdisjoint(("dot", "convolution"))
    return opcode in ("dot", "convolution", "ragged-dot") or is_grouped_matmul(instruction)


def is_grouped_matmul(instruction: Instruction) -> bool:
    """Whether an instruction is a kernel that multiplies groups of rows by a matrix each."""
    return instruction.opcode == "custom-call" and bool(_GROUPED_KERNEL.search(kernel_name(instruction)))


def touches_matmul(fusion: Instruction, *, grouped: bool = False) -> bool:
    """Whether a matrix product feeds a fusion or takes its result, seen through copies, slices and tuples."""
    test = is_grouped_matmul if grouped else is_matmul
    sources = (_source(operand) for operand in fusion.operands)
    if any(test(source) for source in sources):
        return True
    return any(test(user) for near in fusion.users for user in (near, *_users_behind(near)))


def _source(value: Instruction) -> Instruction:
    for _ in range(_DEEPEST):
        if is_async_part(value.opcode):
            value = work_of(start_of(value)) if value.opcode == "async-done" else start_of(value)
        elif value.opcode in (
            "bitcast",
            "copy",
            "copy-start",
            "get-tuple-element",
            "slice",
            "reshape",
            "convert",
        ):
            value = value.operands[0]
        else:
            break
    return value


def _users_behind(near: Instruction) -> tuple[Instruction, ...]:
    if near.opcode in ("bitcast", "copy", "get-tuple-element", "slice", "reshape", "copy-done", "convert"):
        return near.users
    return tuple(u for done in near.users for u in done.users) if near.opcode == "copy-start" else ()
