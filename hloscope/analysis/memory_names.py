"""Names of buffers for a person, made of what the module says: op names, source functions, pytree paths."""

from __future__ import annotations

import re
from functools import lru_cache

from hloscope.analysis.place import provenance
from hloscope.analysis.work import body_opcodes
from hloscope.hlo import Instruction, is_async_part, start_of, work_of

# What jax puts into an op name for its transformations and control flow, not for the user's program.
_STRUCTURE = frozenset({
    "while", "body", "cond", "scan", "closed_call", "eval_jaxpr", "core_call", "pjit", "shard_map", "remat",
    "remat2", "checkpoint", "rematted_computation", "custom_vjp_call", "custom_jvp_call",
    "custom_vjp_call_jaxpr", "pallas_call", "mpmd_map", "tpu_custom_call",
})  # fmt: skip
# Functions of jax.numpy and jax.lax: they say as little of the user's program as a primitive does.
_HELPERS = frozenset({
    "dynamic_index_in_dim", "dynamic_update_index_in_dim", "dynamic_slice_in_dim", "take_along_axis", "_take",
    "_where", "clip", "argsort", "sort", "_roll_static", "_pad", "_einsum", "floor_divide", "remainder",
    "_reduce_sum",
})  # fmt: skip
_CALL = re.compile(r"^\w+\((.*)\)$")
_NUMBER = re.compile(r"[._]\d+$")  # a compiler's copy, or one layer of many
# Only moves a value, so that its producer says more.
_MOVES = frozenset(
    {"bitcast", "copy", "convert", "reshape", "transpose", "get-tuple-element", "copy-start", "copy-done"}
)
_COLLECTIVES = frozenset({"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"})
_UPDATE = re.compile(r"dynamic_update_(index_in_dim|slice)")
_REACH = 16

_KEY = re.compile(r"[A-Za-z_]\w*")
_OPTIMIZER = frozenset({"opt_state", "optimizer", "opt", "optimizer_state"})
_SLOTS = ("mu", "nu", "momentum", "trace", "velocity", "m", "v")
_PARAMS = frozenset({"params", "model", "param_states", "weights"})


def label_of(instruction: Instruction, named: Instruction) -> str:
    """What made a buffer: the innermost scopes of the user's program and the operation, out of the op name of
    `named` (see `place.provenance`): `ragged-sort-fwd ragged gather`, `ffn act mul`, `all-gather moe body`.
    The source's function stands in where the name has no scope."""
    scopes, operation = split_name(named.op_name)
    words = [*(scopes[-2:] or _function(named)), *operation]
    opcode = work_of(instruction).opcode.removesuffix("-start")
    if opcode in _COLLECTIVES or opcode == "copy":
        words = [opcode, *words]
    label = " ".join(w.strip("_").replace("_", " ") for w in words)
    return label or opcode


@lru_cache(maxsize=2**16)
def split_name(op_name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's scopes in an op name, and the operation (empty for a kernel, which its scope names)."""
    parts = op_name.split("/")
    if len(parts) == 1 and not _CALL.match(op_name):
        return (), (_NUMBER.sub("", op_name),)  # the compiler's own name
    scopes: list[str] = []
    operation: list[str] = []
    # The first part is the step itself.
    for number, part in enumerate(parts[1:], 1):
        name = part
        while call := _CALL.match(name):
            name = call[1]
        if not name or name in _STRUCTURE or "->" in name:
            continue
        if name in _HELPERS or (number == len(parts) - 1 and name == part):
            operation = [_NUMBER.sub("", name)]
        elif not scopes or scopes[-1] not in name:
            scopes.append(_NUMBER.sub("", name))
    return tuple(scopes), tuple(operation)


def _function(instruction: Instruction) -> list[str]:
    """The function of the source line, the class of a `__call__`."""
    source = instruction.source
    names = [n for n in source.function.split(".") if not n.startswith("<")] if source else []
    if len(names) > 1 and names[-1] == "__call__":
        names.pop()
    return names[-1:]


def update_of(instruction: Instruction, index: tuple[int, ...]) -> Instruction | None:
    """What a `dynamic-update-slice` writes, if the instruction is one or a fusion that ends in one; None
    where it is anything else."""
    current = instruction
    if current.opcode == "fusion" and current.called_computations:
        if "dynamic-update-slice" not in body_opcodes(current):
            return None
        current = current.called_computations[0].root
        if current.opcode == "tuple" and index and index[0] < len(current.operands):
            current = current.operands[index[0]]
    for _ in range(_REACH):
        if current.opcode not in _MOVES or not current.operands:
            break
        current = current.operands[0]
    if current.opcode != "dynamic-update-slice" or len(current.operands) < 2:
        return None
    return current.operands[1]


def producer(value: Instruction, fusion: Instruction) -> Instruction | None:
    """The instruction that computes a value, what only moves it left out; `fusion` is the one whose body the
    value may stand in. None where nothing but the update itself names it."""
    for _ in range(_REACH):
        if value.opcode == "parameter":
            number = value.parameter_number or 0
            if value.computation is fusion.computation or number >= len(fusion.operands):
                return None
            value = fusion.operands[number]
        elif is_async_part(value.opcode):
            value = work_of(start_of(value))
        elif value.opcode in _MOVES and value.operands:
            value = value.operands[0]
        else:
            named = provenance(value)
            return named if named.op_name and not _UPDATE.search(named.op_name) else None
    return None


def is_path(name: str) -> bool:
    """Whether a parameter's name is the pytree path that jax gives it, not an operation's name."""
    return bool(name) and "/" not in name and not name.startswith("jit(")


def role_of(path: str) -> str:
    """What an argument is to the step, told by its pytree path: `params`, `optimizer mu`, `rngs`, else the
    argument's own name."""
    keys: list[str] = _KEY.findall(path)
    if not keys:
        return "argument"
    state = next((s for s in _SLOTS if s in keys), None)
    if not _OPTIMIZER.isdisjoint(keys):
        return f"optimizer {state}" if state else "optimizer state"
    if "rngs" in keys:
        return "rngs"
    return "params" if not _PARAMS.isdisjoint(keys) else keys[0]
