"""Trip counts of `while` loops, from the induction variable, the bound and the step.

The compiler's own `known_trip_count` is taken where a module has one. Else the condition's compare is
followed through fusions, calls, copies and tuples to one element of the loop state and a bound, and the
body to the step of that element. What cannot be followed is None: never counted as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hloscope.hlo.instruction import Computation, Instruction

# Values pass through these unchanged (scalars: a convert between integer widths keeps a loop counter).
_TRANSPARENT = {"copy", "bitcast", "reshape", "convert", "copy-done", "copy-start", "optimization-barrier"}
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
class _Linear:
    """An integer `offset + (loop state element, or nothing)`."""

    offset: int
    element: int | None = None


@dataclass(frozen=True, slots=True)
class _Tuple:
    """The loop state itself, as a parameter of a condition or body."""


_Value = _Linear | _Tuple | None


class _Env:
    """The values of a computation's parameters, and what was derived from them: each instruction once."""

    def __init__(self, values: list[_Value]) -> None:
        self.values = values
        self.known: dict[int, _Value] = {}


def trip_count(loop: Instruction) -> int | None:
    """How often the body of a `while` runs, or None where it cannot be derived."""
    known = loop.backend_config.get("known_trip_count")
    if isinstance(known, dict) and "n" in known:
        return _as_int(known)  # pyright: ignore[reportUnknownArgumentType]
    body, condition = loop.called_computations[:2] if len(loop.called_computations) >= 2 else (None, None)
    if body is None or condition is None:
        return None
    compare = _compare_of(condition)
    if compare is None:
        return None
    left, right, direction = compare
    if left.element is None and right.element is not None:
        left, right, direction = right, left, _mirrored(direction)
    if left.element is None:
        return None
    bound = right.offset if right.element is None else _invariant(loop, body, right)
    start = _initial(loop, left.element)
    step = _step(body, left.element)
    if bound is None or start is None or step is None:
        return None
    return _count(start + left.offset, bound, step, direction)


def _as_int(known: Mapping[str, Any]) -> int | None:
    value = str(known["n"])
    return int(value) if value.isascii() and value.isdigit() else None


def _count(start: int, bound: int, step: int, direction: str) -> int | None:
    """Trips of `for i = start; i <direction> bound; i += step`."""
    if direction in ("GT", "GE"):
        start, bound, step = -start, -bound, -step
        direction = {"GT": "LT", "GE": "LE"}[direction]
    if direction == "LE":
        bound, direction = bound + 1, "LT"
    if direction == "NE":
        if step == 0 or (bound - start) % step or (bound - start) // step < 0:
            return None
        return (bound - start) // step
    if direction != "LT":
        return None
    if start >= bound:
        return 0
    return -(-(bound - start) // step) if step > 0 else None


def _mirrored(direction: str) -> str:
    return {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)


def _compare_of(condition: Computation) -> tuple[_Linear, _Linear, str] | None:
    """The condition as (left, right, direction), followed into a fusion or call that wraps the compare."""
    root = condition.root
    env = _Env([_Tuple()])
    for _ in range(_DEEPEST):
        if root.opcode == "compare":
            if len(root.operands) != 2:
                return None
            left, right = (_value(o, env, 0) for o in root.operands)
            if isinstance(left, _Linear) and isinstance(right, _Linear):
                return left, right, root.proto.comparison_direction
            return None
        if root.opcode in _TRANSPARENT and root.operands:
            root = root.operands[0]
        elif root.opcode in ("fusion", "call") and root.called_computations:
            env = _Env([_value(o, env, 0) for o in root.operands])
            root = root.called_computations[0].root
        else:
            return None
    return None


def _step(body: Computation, element: int) -> int | None:
    out = _body_element(body, element)
    return out.offset if isinstance(out, _Linear) and out.element == element else None


def _body_element(body: Computation, element: int) -> _Value:
    root = body.root
    while root.opcode in _TRANSPARENT and root.operands:
        root = root.operands[0]
    if root.opcode != "tuple" or element >= len(root.operands):
        return None
    return _value(root.operands[element], _Env([_Tuple()]), 0)


def _invariant(loop: Instruction, body: Computation, bound: _Linear) -> int | None:
    """The value of a bound that is carried in the loop state unchanged."""
    assert bound.element is not None
    start = _initial(loop, bound.element)
    if start is None or _step(body, bound.element) != 0:
        return None
    return start + bound.offset


def _initial(loop: Instruction, element: int) -> int | None:
    """The value of a loop state element before the loop."""
    state = loop.operands[0]
    while state.opcode in _TRANSPARENT and state.operands:
        state = state.operands[0]
    if state.opcode != "tuple" or element >= len(state.operands):
        return None
    value = _value(state.operands[element], _Env([]), 0)
    return value.offset if isinstance(value, _Linear) and value.element is None else None


def _value(instruction: Instruction, env: _Env, depth: int) -> _Value:
    """The instruction as a linear function of one loop state element; None where it is anything else."""
    if depth > _DEEPEST:
        return None
    if instruction.id not in env.known:
        env.known[instruction.id] = _derive(instruction, env, depth)
    return env.known[instruction.id]


def _derive(instruction: Instruction, env: _Env, depth: int) -> _Value:
    opcode = instruction.opcode
    if opcode == "constant":
        return _constant(instruction)
    if opcode == "parameter":
        number = instruction.proto.parameter_number
        return env.values[number] if 0 <= number < len(env.values) else None
    if opcode in _TRANSPARENT and instruction.operands:
        return _value(instruction.operands[0], env, depth + 1)
    if opcode == "get-tuple-element":
        return _element(instruction, env, depth)
    if opcode in ("fusion", "call") and instruction.called_computations:
        inner = _Env([_value(o, env, depth + 1) for o in instruction.operands])
        return _value(instruction.called_computations[0].root, inner, depth + 1)
    if opcode in ("add", "subtract") and len(instruction.operands) == 2:
        left, right = (_value(o, env, depth + 1) for o in instruction.operands)
        return _sum(left, right, 1 if opcode == "add" else -1)
    return None


def _element(instruction: Instruction, env: _Env, depth: int) -> _Value:
    source, index = instruction.operands[0], instruction.proto.tuple_index
    if source.opcode == "tuple":
        return _value(source.operands[index], env, depth + 1) if index < len(source.operands) else None
    if source.opcode in ("fusion", "call") and source.called_computations:
        root = source.called_computations[0].root
        inner = _Env([_value(o, env, depth + 1) for o in source.operands])
        if root.opcode == "tuple" and index < len(root.operands):
            return _value(root.operands[index], inner, depth + 1)
        return None
    whole = _value(source, env, depth + 1)
    return _Linear(0, index) if isinstance(whole, _Tuple) else None


def _sum(left: _Value, right: _Value, sign: int) -> _Value:
    if not isinstance(left, _Linear) or not isinstance(right, _Linear):
        return None
    if right.element is None:
        return _Linear(left.offset + sign * right.offset, left.element)
    if left.element is None and sign > 0:
        return _Linear(left.offset + right.offset, right.element)
    return None


def _constant(instruction: Instruction) -> _Value:
    literal = instruction.proto.literal
    for values in (literal.s32s, literal.s64s, literal.u32s, literal.u64s):
        if len(values) == 1:
            return _Linear(int(values[0]))
    return None
