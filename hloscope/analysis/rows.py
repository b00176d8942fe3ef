"""Ragged buffers: the packed rows that grouped matmuls read, and the work that streams all of them.

A buffer has room for the worst case; only its first sum(group_sizes) rows are tokens. Grouped matmuls skip
the rest, the elementwise work around them does not. Buffers are found by dataflow from the grouped matmuls,
through operations that keep rows apart; which share of their rows is valid is derived where the program
shows how many assignments the group sizes count, and unknown otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hloscope.analysis.grouped import GroupedMatmul, grouped_matmuls, recognise
from hloscope.analysis.ranges import integer_constant, integer_range
from hloscope.analysis.rowwise import carries_rows, is_row_wise
from hloscope.analysis.traffic import hbm_bytes
from hloscope.analysis.values import origin
from hloscope.hlo import Computation, Instruction, Module, Shape, alike, is_async_part, once_for_each

# A row narrower than one vector register's lanes is a mask or an index, not data of a token.
_LANES = 128

# Inside a concatenation nothing is computed: operands are placed side by side.
_PLACING = frozenset(
    {
        "parameter", "constant", "broadcast", "bitcast", "reshape", "copy", "convert", "slice", "tuple", "iota",
        "transpose", "compare", "select", "and", "get-tuple-element", "fusion", "dynamic-slice",
    }
)  # fmt: skip
_JOINING = frozenset({"maximum", "add", "or"})

# What reads and writes no buffer, or is counted where its other end is.
_NO_WORK = frozenset(
    {
        "parameter", "constant", "broadcast", "iota", "bitcast", "reshape", "tuple", "get-tuple-element",
        "optimization-barrier", "copy-start", "copy-done", "custom-call", "ragged-dot", "async-start", "while", "call",
        "async-update", "async-done",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBufferWork:
    """An instruction that streams a whole ragged buffer.

    `role` is "fusion", "concatenation", "copy", or for what the compiler left unfused "slice" or "operation".

    `row_bytes` are the HBM bytes over rows that one execution reads and writes: what shrinks with the
    share of valid rows.
    """

    instruction: Instruction
    role: str
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedBuffer:
    """A ragged buffer and the work on it.

    `valid_fraction` is the share of rows that are tokens where the program proves it, else None;
    `reason` says how it was derived, or what would have to be known. `values` are all values over its rows that
    row-wise work or grouped matmuls connect.
    """

    rows: int
    groups: int
    matmuls: tuple[GroupedMatmul, ...]
    work: tuple[FullBufferWork, ...]
    valid_fraction: float | None
    reason: str
    values: tuple[Instruction, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """All ragged buffers of a module, largest row count first."""

    buffers: tuple[RaggedBuffer, ...]


def analyze_rows(module: Module) -> Rows:
    """Find the grouped matmuls of a module and everything that streams their buffers in full."""
    waiting = {g.instruction.id: g for g in grouped_matmuls(module)}
    place = {number: i for i, number in enumerate(waiting)}
    by_value: dict[int, list[int]] = {}  # matmuls by the values that they write or read
    for number, matmul in waiting.items():
        for value in (matmul.instruction, *matmul.buffers):
            by_value.setdefault(value.id, []).append(number)
    buffers: list[RaggedBuffer] = []
    while waiting:
        seed = next(iter(waiting.values()))
        values = _connected(seed)
        touched = {seed.instruction.id, *(number for value in values for number in by_value.get(value, ()))}
        joined = [waiting.pop(number) for number in sorted(touched & waiting.keys(), key=place.__getitem__)]
        buffers.append(_buffer(seed, joined, values))
    return Rows(buffers=tuple(sorted(buffers, key=lambda b: (-b.rows, -len(b.work)))))


def _connected(seed: GroupedMatmul) -> dict[int, Instruction]:
    """Every value over the seed's rows that row-wise work or another grouped matmul joins to it."""
    rows = seed.rows
    values: dict[int, Instruction] = {}
    known: dict[int, bool] = {}
    queue = [*seed.buffers, seed.instruction]
    while queue:
        value = queue.pop()
        if value.id in values or not _is_wide(value, rows) or _only_collects(value):
            continue
        values[value.id] = value
        queue += [u for u in value.users if _joins(u, rows, known)]
        if _joins(value, rows, known):
            queue += value.operands
    return values


def _joins(value: Instruction, rows: int, known: dict[int, bool]) -> bool:
    """Whether a value joins its operands over rows to itself; asked once for each of them, so remembered."""
    if value.id not in known:
        known[value.id] = is_row_wise(value, rows) or recognise(value) is not None
    return known[value.id]


def _only_collects(value: Instruction) -> bool:
    """Whether a value is a tuple of things that need not have to do with each other: a loop's state, a result."""
    return value.shape.is_tuple and value.opcode in ("tuple", "parameter", "while", "conditional", "call")


def _is_wide(value: Instruction, rows: int) -> bool:
    """Whether a part of a value is data of tokens; looked at once for each shape."""
    known, key = value.module.facts[_is_wide], (id(value.shape), rows)
    if key not in known:
        known[key] = any(is_wide_array(leaf, rows) for leaf in value.shape.parts)
    return known[key]


def is_wide_array(leaf: Shape, rows: int) -> bool:
    """Whether an array holds data of tokens, not a mask or an index for each row."""
    return rows in leaf.dimensions and math.prod(leaf.dimensions) >= rows * _LANES


def _buffer(
    seed: GroupedMatmul, matmuls: list[GroupedMatmul], values: dict[int, Instruction]
) -> RaggedBuffer:
    rows = seed.rows
    found = (_full_buffer_work(v, rows) for v in values.values())
    work = sorted((w for w in found if w is not None), key=lambda w: w.instruction.id)
    fraction, reason = _valid_fraction(matmuls)
    return RaggedBuffer(
        rows=rows,
        groups=seed.groups,
        matmuls=tuple(matmuls),
        work=tuple(work),
        valid_fraction=fraction,
        reason=reason,
        values=tuple(sorted(values.values(), key=lambda v: v.id)),
    )


def _full_buffer_work(value: Instruction, rows: int) -> FullBufferWork | None:
    """The value as work over the whole buffer, or None where it is something else or stays in VMEM."""
    if value.opcode in _NO_WORK or is_async_part(value.opcode) or not is_row_wise(value, rows):
        return None
    arrays = {o.id: o.shape for o in value.operands}
    leaves = [leaf for s in [value.shape, *arrays.values()] for leaf in s.parts]
    over_rows = [leaf for leaf in leaves if rows in leaf.dimensions and leaf.memory_space == 0]
    if not any(is_wide_array(leaf, rows) for leaf in over_rows):
        return None
    row_bytes = sum(leaf.padded_bytes for leaf in over_rows)
    # A fusion may read only some columns of what it is given.
    moved = hbm_bytes(value)
    return FullBufferWork(
        instruction=value,
        role=_role(value),
        row_bytes=row_bytes if moved is None else min(row_bytes, moved),
    )


def _role(value: Instruction) -> str:
    if value.opcode != "fusion":
        return {"copy": "copy", "slice": "slice", "concatenate": "concatenation"}.get(
            value.opcode, "operation"
        )
    return _role_of(alike(value.called_computations[0]))


@once_for_each
def _role_of(body: Computation) -> str:
    opcodes = _opcodes(body)
    computing = [o for o in opcodes if o not in _PLACING]
    joins = sum(o in _JOINING for o in computing)
    padded = computing.count("pad") >= 2 and joins == 1 and len(computing) == computing.count("pad") + 1
    placed = bool(computing) and set(computing) <= {"concatenate", "dynamic-update-slice"}
    return (
        "concatenation" if padded or placed else "copy" if not computing and "copy" in opcodes else "fusion"
    )


def _opcodes(body: Computation) -> list[str]:
    """Opcodes in a fusion's body, those of nested fusions included."""
    found: list[str] = []
    for inner in body.instructions:
        found.append(inner.opcode)
        if inner.opcode == "fusion":
            found += _opcodes(inner.called_computations[0])
    return found


def _valid_fraction(matmuls: list[GroupedMatmul]) -> tuple[float | None, str]:
    """The share of valid rows that all of the buffer's grouped matmuls agree on."""
    counts = {_counted_rows(g) for g in matmuls}
    counts.discard(None)
    rows = matmuls[0].rows
    if len(counts) != 1:
        return None, "the program does not show what the group sizes add up to"
    count = counts.pop()
    assert count is not None
    if count > rows:
        return None, f"the group sizes count {count:,} assignments for {rows:,} rows"
    return (
        count / rows,
        f"the group sizes count {count:,} assignments, each to an existing group, in {rows:,} rows",
    )


def _counted_rows(matmul: GroupedMatmul) -> int | None:
    """What a matmul's group sizes surely add up to, or None.

    Shown where they are a histogram: ones scatter-added into zeros, at indices that all exist.
    """
    for sizes in matmul.sizes:
        count = _histogram_total(_group_sizes(sizes), matmul.groups)
        if count is not None:
            return count
    return None


def _group_sizes(sizes: Instruction) -> Instruction:
    """XLA's ragged-dot takes metadata that a small kernel of its own makes from the group sizes."""
    made = origin(sizes)
    if made.opcode == "get-tuple-element" and made.operands[0].opcode == "custom-call":
        kernel = made.operands[0]
        if len(kernel.operands) == 1 and len(kernel.operands[0].shape.dimensions) == 1:
            return origin(kernel.operands[0])
    return made


def _histogram_total(sizes: Instruction, groups: int) -> int | None:
    if sizes.opcode != "scatter" or sizes.shape.dimensions != (groups,) or len(sizes.operands) != 3:
        return None
    target, indices, updates = sizes.operands
    combiner = sizes.called_computations[0].root.opcode if sizes.called_computations else ""
    if combiner != "add" or integer_constant(target) != 0 or integer_constant(updates) != 1:
        return None
    if not integer_range(indices).within(0, groups - 1):
        return None
    return updates.shape.elements


def wide_shape(work: FullBufferWork, rows: int) -> str:
    """The shape that a person knows the work by: what it writes over rows, wide arrays first."""
    leaves = work.instruction.shape.parts
    wide = [leaf.short for leaf in leaves if is_wide_array(leaf, rows)]
    if not wide:
        read = [o.shape.short for o in work.instruction.operands if carries_rows(o.shape, rows)]
        return f"reads {read[0]}" if read else work.instruction.shape.short
    return f"{len(wide)} x {wide[0]}" if len(wide) > 1 and len(set(wide)) == 1 else ", ".join(wide)
