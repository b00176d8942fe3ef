"""Buffers, told apart and named: those alive at the peak, the largest of all, and the families they fold into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from hloscope.analysis.memory_live import Replay, Slot
from hloscope.analysis.memory_names import is_path, label_of, producer, role_of, update_of
from hloscope.analysis.memory_order import Order
from hloscope.analysis.place import phase_of_name, provenance
from hloscope.hlo import Instruction, Module, Shape, SourceFrame
from hloscope.hlo.buffers import Allocation, Buffers

# These only stand for what flows through them: another value of the same place tells what it is.
_CARRIERS = frozenset(
    {"parameter", "while", "conditional", "call", "tuple", "get-tuple-element", "broadcast"}
)
_COPY_OF = "copy of "


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer. Bytes are of one device."""

    bytes: int  # as the compiler assigned it, padding included
    unpadded_bytes: int | None
    shape: Shape | None
    instruction: Instruction | None  # what defines it; None if the module does not have it
    shape_index: tuple[int, ...]
    kind: str  # "argument", "temp", "output", "constant", "thread-local"
    label: str  # for a person: parameter name or what made it
    op_name: str
    source: SourceFrame | None
    phase: str  # of hloscope.analysis.place.Phase, by value; "argument" for arguments
    first: int | None  # schedule positions between which it lives
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFamily:
    """Buffers at the peak that are copies of one thing: same shape, operation and place, once per layer,
    clone or rematerialization; arguments of one role."""

    label: str
    shape: str  # without layout; "6 shapes" of arguments that differ
    phases: tuple[str, ...]
    source: SourceFrame | None
    count: int
    bytes: int
    unpadded_bytes: int | None
    buffers: tuple[Buffer, ...]


def buffers_at_peak(
    module: Module,
    buffers: Buffers,
    order: Order,
    heap: Replay | None,
    outside: Iterable[Allocation],
    names: Sequence[str],
) -> tuple[Buffer, ...]:
    """Every buffer alive at the peak, largest first: the slots of the heap, and the allocations outside of
    it, which live throughout. `names` name the entry's parameters."""
    found = [_of_slot(s, heap.peak_event, buffers, order, heap) for s in heap.slots_at_peak] if heap else []
    parameters = module.entry.parameters
    for allocation in outside:
        if allocation.parameter is not None:
            found.append(_argument(allocation, parameters, names, order))
        else:
            found.append(_standing(allocation, buffers, order))
    return tuple(sorted(found, key=lambda b: -b.bytes))


def largest_temporaries(buffers: Buffers, order: Order, heap: Replay | None, most: int) -> tuple[Buffer, ...]:
    """The `most` largest slots of the heap over the whole schedule, at the peak or not, largest first."""
    if heap is None:
        return ()
    slots = nlargest(most, heap.slots, key=lambda s: buffers.bytes[s.canonical])
    last = len(heap.event_positions)
    return tuple(_of_slot(s, last if s.end is None else s.end, buffers, order, heap) for s in slots)


def _of_slot(slot: Slot, event: int, buffers: Buffers, order: Order, heap: Replay) -> Buffer:
    """What a slot holds at an event."""
    value = _telling_value(slot, event, buffers, order)
    instruction, index = _defined(value, buffers, order)
    begin = int(heap.event_positions[slot.begin])
    end = len(order.instructions) if slot.end is None else int(heap.event_positions[slot.end])
    size = buffers.bytes[slot.canonical]
    return _made_by(instruction, index, size, "temp", begin, max(begin, end - 1))


def _telling_value(slot: Slot, at: int, buffers: Buffers, order: Order) -> int:
    """The value of a slot that says best what it holds at an event: the latest that is computed, not only
    carried around a loop. Of a loop's state, what the loop's body makes of it."""
    so_far = [v for event, v in slot.values if event <= at]
    current = _defined(so_far[-1], buffers, order)[0]
    if current is not None and current.opcode == "parameter":
        so_far = [v for _, v in slot.values]
    computed = [v for v in so_far if _computes(_defined(v, buffers, order)[0])]
    return computed[-1] if computed else so_far[-1]


def _computes(instruction: Instruction | None) -> bool:
    if instruction is None or instruction.opcode in _CARRIERS:
        return False
    return instruction.custom_call_target != "AllocateBuffer"


def _defined(value: int, buffers: Buffers, order: Order) -> tuple[Instruction | None, tuple[int, ...]]:
    instruction, index = buffers.values[value]
    return order.find(instruction), index


def _argument(
    allocation: Allocation, parameters: Sequence[Instruction], names: Sequence[str], order: Order
) -> Buffer:
    number, index = allocation.parameter or (-1, ())
    parameter = parameters[number] if 0 <= number < len(parameters) else None
    own = parameter.op_name if parameter is not None and is_path(parameter.op_name) else ""
    name = (names[number] if 0 <= number < len(names) else "") or own or f"argument {number}"
    shape = _shape_at(parameter, index)
    return Buffer(
        bytes=allocation.bytes,
        unpadded_bytes=_unpadded(shape),
        shape=shape,
        instruction=parameter,
        shape_index=index,
        kind="argument",
        label=name,
        op_name=parameter.op_name if parameter is not None else "",
        source=parameter.source if parameter is not None else None,
        phase="argument",
        first=0,
        last=max(0, len(order.instructions) - 1),
    )


def _standing(allocation: Allocation, buffers: Buffers, order: Order) -> Buffer:
    """An output, a constant or another allocation of its own; it counts from the first position on."""
    instruction, index = _defined(allocation.values[-1], buffers, order) if allocation.values else (None, ())
    return _made_by(
        instruction, index, allocation.bytes, allocation.kind, 0, max(0, len(order.instructions) - 1)
    )


def _made_by(
    instruction: Instruction | None, index: tuple[int, ...], size: int, kind: str, first: int, last: int
) -> Buffer:
    shape = _shape_at(instruction, index)
    named = provenance(instruction) if instruction is not None else None
    label, source = kind, None
    if instruction is not None and named is not None:
        label, source = _label(instruction, index, named)
    return Buffer(
        bytes=size,
        unpadded_bytes=_unpadded(shape),
        shape=shape,
        instruction=instruction,
        shape_index=index,
        kind=kind,
        label="table of a tuple" if shape is not None and shape.is_tuple else label,
        op_name=named.op_name if named is not None else "",
        source=source,
        phase=phase_of_name(named.op_name if named is not None else "").value,
        first=first,
        last=last,
    )


def _label(
    instruction: Instruction, index: tuple[int, ...], named: Instruction
) -> tuple[str, SourceFrame | None]:
    """The label, and the source line that goes with it."""
    if instruction.opcode == "constant":
        return "constant", named.source
    update = update_of(instruction, index)
    if update is not None:
        made = producer(update, instruction)
        label = "stacked by a loop" if made is None else f"{label_of(made, made)}, stacked by a loop"
        return label, (made or named).source
    if is_path(named.op_name) and "[" in named.op_name:
        return _COPY_OF + named.op_name, named.source
    return label_of(instruction, named), named.source


def _shape_at(instruction: Instruction | None, index: tuple[int, ...]) -> Shape | None:
    if instruction is None:
        return None
    try:
        return instruction.shape.at(index)
    except IndexError:
        return None


def _unpadded(shape: Shape | None) -> int | None:
    """Bytes of the elements alone; None of a tuple, whose buffer is a table of addresses."""
    return None if shape is None or shape.is_tuple else shape.bytes


def fold(buffers: Iterable[Buffer]) -> tuple[BufferFamily, ...]:
    """The families of buffers, largest first: temporaries by shape, label and phase, arguments by role,
    constants and outputs by kind."""
    families: dict[tuple[str, ...], list[Buffer]] = {}
    for buffer in buffers:
        families.setdefault(_family_key(buffer), []).append(buffer)
    folded = (_family(key[0], members) for key, members in families.items())
    return tuple(sorted(folded, key=lambda f: -f.bytes))


def _family_key(buffer: Buffer) -> tuple[str, ...]:
    if buffer.kind == "argument":
        return (role_of(buffer.label), buffer.kind)
    if buffer.label.startswith(_COPY_OF):
        role = role_of(buffer.label.removeprefix(_COPY_OF))
        return (_COPY_OF + role, _short(buffer), buffer.phase)
    if buffer.kind in ("constant", "output"):
        return (f"{buffer.kind}s", buffer.kind)
    return (buffer.label, _short(buffer), buffer.phase)


def _short(buffer: Buffer) -> str:
    return buffer.shape.short if buffer.shape is not None else ""


def _family(label: str, members: list[Buffer]) -> BufferFamily:
    unpadded = [b.unpadded_bytes for b in members if b.unpadded_bytes is not None]
    shapes = Counter(_short(b) for b in members)
    return BufferFamily(
        label=label,
        shape=next(iter(shapes)) if len(shapes) == 1 else f"{len(shapes)} shapes",
        phases=tuple(dict.fromkeys(b.phase for b in members)),
        source=next((b.source for b in members if b.source is not None), None),
        count=len(members),
        bytes=sum(b.bytes for b in members),
        unpadded_bytes=sum(unpadded) if len(unpadded) == len(members) else None,
        buffers=tuple(members),
    )
