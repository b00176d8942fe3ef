"""What a person would call an instruction's work: activation, unsort, matmul, optimizer, a kernel's name.

Told from what a fusion's body computes and where its operands come from, with the program's own names as a
second witness. Where neither is clear the last meaningful part of the op name stands for itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hloscope.analysis.matmuls import kernel_name, touches_matmul
from hloscope.analysis.place import Phase, phase_of_name, provenance
from hloscope.analysis.work import (
    COLLECTIVES,
    body_opcodes,
    collective_opcode,
    fusion_bodies,
    has_collective,
    started_result,
)
from hloscope.hlo import alike, alike_work, once_for_each

if TYPE_CHECKING:
    from hloscope.hlo import Computation, Instruction, Shape

_MOVES = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "fusion", "broadcast",
    "reshape", "convert", "reduce-precision", "bitcast-convert", "iota", "transpose", "partition-id",
    "custom-call", "opt-barrier", "clamp",
})  # fmt: skip

# Scopes of the program that say what work is done in them.
_SCOPES = {
    "activation": re.compile(
        r"(^|[/(_])(silu|swish|gelu|swiglu|geglu|glu|relu|sigmoid|act|activation)([/)_]|$)"
    ),
    "loss": re.compile(r"cross_entropy|log_softmax|logsumexp|xent|nll"),
    "optimizer": re.compile(r"adam|optimizer|opt_state|apply_updates|lion|adafactor"),
    "rope": re.compile(r"(^|[/(_])(rope|rotary)"),
    "norm": re.compile(r"rms_?norm", re.IGNORECASE),
    "attention": re.compile(r"attention|(^|[/(_])attn"),
}
# A module has far fewer op names, and sets of opcodes, than instructions.
_NAMES = 2**16

# Parts of an op name that say where, not what.
_FRAME = re.compile(
    r"^(while|body|cond|body_fun|closed_call|checkpoint|remat\d*|rematted_computation|shard_map|eval_jaxpr|core_call"
    r"|custom_jvp_call|custom_vjp_call|pallas_call|mpmd_map|pjit|branch_\d+_fun|[a-z_]*\(.*\))$"
)
# Primitives that only arrange values: no name for a fusion that computes.
_ARRANGING = frozenset({
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "convert_element_type", "slice", "dynamic_slice",
    "concatenate", "split", "dot_general", "expand_dims", "copy", "gather", "iota", "stack", "select_n",
    "pad",
})  # fmt: skip
# One word for one kind of work, whether an opcode or a primitive's name told of it.
_WORDS = {
    "convert": "cast", "bitcast-convert": "cast", "reduce-precision": "cast", "bitcast_convert_type": "cast",
    "reduce-window": "reduce", "reduce_sum": "reduce", "reduce_max": "reduce", "reduce_window_sum": "cumsum",
    "add_any": "add", "multiply": "mul", "subtract": "sub", "negate": "neg", "divide": "div", "power": "pow",
    "minimum": "min", "maximum": "max", "exponential": "exp", "dynamic_update_slice": "dynamic-update-slice",
    "eq": "compare", "ne": "compare", "lt": "compare", "le": "compare", "gt": "compare", "ge": "compare",
    "rng_bit_generator": "rng-bit-generator", "conv_general_dilated": "convolution",
}  # fmt: skip
_NEAR_SPACES = {1: "vmem", 5: "host", 6: "smem"}


def family_of(instruction: Instruction, op_name: str | None = None) -> str:
    """The family name of an instruction's work, e.g. `activation`, `tgmm`, `copy`, `add_any`.

    `op_name` is that of its provenance, where the caller has it already.
    """
    name = provenance(instruction).op_name if op_name is None else op_name
    opcode = instruction.opcode
    collective = collective_opcode(opcode)
    if collective:
        return collective
    if opcode == "custom-call":
        return kernel_name(instruction)
    if opcode in ("copy", "copy-start"):
        return _copy_family(instruction)
    if opcode == "fusion" and instruction.called_computations:
        return _fusion_family(instruction, name)
    if opcode in ("dot", "convolution"):
        return _matmul_family(name, frozenset({opcode}))
    plain = opcode.removesuffix("-start")
    return _WORDS.get(plain, plain)


def _copy_family(copy: Instruction) -> str:
    source = copy.operands[0].shape.memory_space if copy.operands else 0
    target = started_result(copy).memory_space
    if source == target:
        return "copy"
    if target in _NEAR_SPACES and source not in (5, target):
        return f"copy to {_NEAR_SPACES[target]}"
    return f"copy from {_NEAR_SPACES[source]}" if source in _NEAR_SPACES else "copy"


def _fusion_family(fusion: Instruction, op_name: str) -> str:
    ops = body_opcodes(fusion)
    if has_collective(ops):
        collectives = {op.removesuffix("-start") for op in ops} & COLLECTIVES
        return (
            "reduce-scatter" if collectives == {"all-reduce"} and "dynamic-slice" in ops else min(collectives)
        )
    if not ops.isdisjoint(("dot", "convolution")):
        return _matmul_family(op_name, ops)
    found = _exponential_family(fusion, ops, op_name) or _scoped_family(fusion, ops, op_name)
    return found or _plain_family(op_name, ops)


@lru_cache(maxsize=_NAMES)
def _scopes(op_name: str) -> frozenset[str]:
    """The kinds of work that the scopes in an op name tell."""
    return frozenset(kind for kind, scope in _SCOPES.items() if scope.search(op_name))


@lru_cache(maxsize=_NAMES)
def _matmul_family(op_name: str, ops: frozenset[str]) -> str:
    if "conv_general_dilated" in op_name:
        return "convolution"
    if "ragged_dot" in op_name:
        return "grouped matmul"
    return "attention" if "exponential" in ops and "attention" in _scopes(op_name) else "matmul"


def _exponential_family(fusion: Instruction, ops: frozenset[str], op_name: str) -> str | None:
    """Activations and softmaxes, told apart by what the exponential is taken of."""
    if ops.isdisjoint(("exponential", "logistic", "tanh", "erf")):
        return None
    arguments = _arguments_of_exponentials(alike_work(fusion))
    if not ops.isdisjoint(("logistic", "tanh", "erf")) or "negate" in arguments:
        near = "activation" in _scopes(op_name) or touches_matmul(fusion)
        return "activation" if near and _is_wide(fusion.shape) else None
    if "subtract" not in arguments:
        return None
    if _compares_labels(fusion) or "log" in ops or "loss" in _scopes(op_name):
        return "cross entropy"
    return "softmax" if "reduce" in ops or "softmax" in op_name else None


def _compares_labels(fusion: Instruction) -> bool:
    """Whether a fusion has a one-hot of labels: columns' own numbers compared for equality, not for order as
    in the masks of attention."""
    return any(_has_labels(alike(body)) for body in fusion_bodies(fusion))


@once_for_each
def _has_labels(body: Computation) -> bool:
    compares = (i for i in body.instructions if i.opcode == "compare")
    equal = (i for i in compares if i.proto.comparison_direction == "EQ")
    return any(_rearranged(operand).opcode == "iota" for i in equal for operand in i.operands)


@once_for_each
def _arguments_of_exponentials(fusion: Instruction) -> set[str]:
    """The opcodes that make what a fusion takes exponentials of."""
    found: set[str] = set()
    opcodes_in = fusion.module.opcodes_in
    for body in fusion_bodies(fusion):
        if "exponential" in opcodes_in(body.id):
            found |= _exponentials_of(alike(body))
    return found


@once_for_each
def _exponentials_of(body: Computation) -> frozenset[str]:
    exponentials = (i for i in body.instructions if i.opcode == "exponential")
    return frozenset(_rearranged(i.operands[0]).opcode for i in exponentials)


def _rearranged(value: Instruction) -> Instruction:
    """What a value is made of, seen through changes of type, layout and shape."""
    while value.opcode in ("convert", "bitcast", "copy", "reshape", "broadcast", "transpose"):
        value = value.operands[0]
    return value


def _is_wide(shape: Shape) -> bool:
    """Whether a result is [rows, columns] at least, not a vector of gates or probabilities."""
    return any(sum(d > 1 for d in leaf.dimensions) >= 2 for leaf in shape.parts)


def _scoped_family(fusion: Instruction, ops: frozenset[str], op_name: str) -> str | None:
    """Families that need arithmetic of their kind, and a scope or a dataflow that says so."""
    phase = phase_of_name(op_name)
    if "multiply" in ops and ("unsort" in op_name or _is_weighted_rows(fusion, ops)):
        return "unsort"
    roots = not ops.isdisjoint(("sqrt", "rsqrt"))
    if "optimizer" in _scopes(op_name) or (phase is Phase.OTHER and roots and "divide" in ops):
        return "optimizer" if "multiply" in ops else None
    if "rope" in _scopes(op_name) or not ops.isdisjoint(("cosine", "sine")):
        return "rope"
    if "norm" in _scopes(op_name) or ("rsqrt" in ops and "multiply" in ops):
        return "rmsnorm" if "subtract" not in ops or phase is Phase.BACKWARD else "norm"
    return None


def _is_weighted_rows(fusion: Instruction, ops: frozenset[str]) -> bool:
    """Rows weighted by a vector, beside the row dot that is the vector's gradient, at a grouped matmul."""
    parts = fusion.shape.tuple_shapes
    if parts is None or len(parts) != 2 or "reduce" not in ops:
        return False
    rows = {part.dimensions[:1] for part in parts}
    if len(rows) != 1 or {len(part.dimensions) for part in parts} != {1, 2}:
        return False
    return touches_matmul(fusion, grouped=True)


@lru_cache(maxsize=_NAMES)
def _plain_family(op_name: str, ops: frozenset[str]) -> str:
    """The family of a fusion of which neither its dataflow nor a scope tells what it is for."""
    work = ops - _MOVES
    return _movement_family(ops, work) or _named_family(op_name, ops, work)


def _movement_family(ops: frozenset[str], work: frozenset[str]) -> str | None:
    """Fusions that move values and compute nothing."""
    if "scatter" in ops:
        return "scatter"
    if "gather" in ops:
        return "gather"
    if "dynamic-update-slice" in work and work <= {"dynamic-update-slice", "slice", "dynamic-slice"}:
        return "dynamic-update-slice"
    if work <= {"pad", "maximum", "slice", "concatenate"} and (
        work >= {"pad", "maximum"} or "concatenate" in work
    ):
        return "concatenate"
    if "select" in work and work <= {"select", "compare", "and", "or", "not", "slice"}:
        return "select"
    if "reduce" in work and len(work) == 1:
        return "reduce"
    if len(work) == 1:
        (only,) = work
        return only if only in ("slice", "dynamic-slice", "pad", "reverse", "sort") else None
    if not work:
        return (
            "cast"
            if "convert" in ops
            else "transpose"
            if "transpose" in ops
            else "copy"
            if "copy" in ops
            else None
        )
    return None


def _named_family(op_name: str, ops: frozenset[str], work: frozenset[str]) -> str:
    """The last part of the op name that says what is computed."""
    if "reduce" in ops:
        return "reduce"
    path = op_name.split(";")[0]
    # What has no path is an argument's name or made up by the compiler.
    parts = re.split(r"/(?![^(]*\))", path) if "/" in path else []
    named = next((p for p in reversed(parts) if p and not _FRAME.match(p) and p != "..."), "")
    named = re.sub(r"(\.\d+)+$", "", named)
    if not named or named in _ARRANGING or not re.fullmatch(r"[a-z][a-z0-9_]*", named):
        return "elementwise" if work else "broadcast" if "broadcast" in ops else "copy"
    return _WORDS.get(named, named)
