"""Mutations of modules: of the message's fields, of the bytes, and of the text's tokens."""

from __future__ import annotations

import random
import re
from typing import Any

from google.protobuf.message import Message

from hloscope.hlo import protos

INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 10**9, 10**18, 2**62, 2**63 - 1)
STRINGS = (
    "",
    "x",
    "%",
    "while",
    "fusion",
    "tuple",
    "copy-start",
    "async-start",
    "kLoop",
    "\x1b[2J",
    "é" * 50,
    "/" * 99,
)
OPCODES = (
    "parameter", "constant", "fusion", "while", "call", "conditional", "async-start", "async-update", "async-done",
    "get-tuple-element", "tuple", "dynamic-update-slice", "scatter", "gather", "all-gather", "all-reduce", "copy-done",
    "reduce-scatter", "custom-call", "dot", "convolution", "ragged-dot", "compare", "iota", "reduce", "concatenate",
)  # fmt: skip
TOKENS = re.compile(rb"[\w.\-%]+|\s+|.", re.DOTALL)
WORDS = (
    b"{", b"}", b"(", b")", b"[", b"]", b",", b"=", b'"', b"\\", b"#0", b"#99999999999", b"<=", b"?", b"-1", b"0",
    b"\xff",
    b"9223372036854775807", b"99999999999999999999", b"1e999", b"nan", b"/*", b"*/", b"//", b"ROOT ", b"ENTRY ", b"b(",
    b"{...}", b"mesh['a'=2]", b"[2,4]<=[8]T(0)", b"condition=", b"HloModule ", b"f32[1000000000000000000]{0}", b"\x00",
    b"(" * 3000, b"{" * 3000, b"((f32[], f32[]), u32[])", b"async-start(", b"slice={[0:5:0]}", b"window={size=0x0}",
)  # fmt: skip

Draw = random.Random


def message(seed: protos.HloProto, draw: Draw, part: str = "") -> bytes:
    """The module with one to four of its fields changed; only those within `part`, a path of fields, if given."""
    changed = protos.HloProto.FromString(seed.SerializeToString())
    root: Any = changed
    for name in part.split(".") if part else ():
        root = getattr(root, name)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _change(root, draw)
    return changed.SerializeToString()


def _change(root: Message, draw: Draw) -> None:
    """Go down to a field that is set, and change it."""
    current = root
    while True:
        fields = [f for f, _ in current.ListFields()]
        if not fields:
            return
        # Instructions are most of a module, and would be most of what is drawn anyway.
        field = draw.choice(fields)
        value: Any = getattr(current, field.name)
        if field.type == field.TYPE_MESSAGE and not _is_map(field):
            if not _is_list(field):
                if draw.random() < 0.05:
                    current.ClearField(field.name)
                    return
                current = value
                continue
            if draw.random() < 0.15:
                _change_list(value, draw)
                return
            current = draw.choice(value)
            continue
        if _is_map(field):
            _change_map(value, draw)
        elif _is_list(field):
            _change_scalars(value, field, draw)
        elif field.full_name == "hloscope.hlo.Instruction.shape" and draw.random() < 0.9:
            shape = protos.Shape.FromString(value)  # a message, kept as bytes
            _change(shape, draw)
            current.shape = shape.SerializeToString()
        else:
            _set(current, field, draw)
        return


def _is_list(field: Any) -> bool:
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _change_list(values: Any, draw: Draw) -> None:
    place = draw.randrange(len(values))
    what = draw.randrange(3)
    if what == 0:
        del values[place]
    elif what == 1:
        values.append(values[place])
    else:
        values.insert(draw.randrange(len(values)), values[place])


def _change_map(values: Any, draw: Draw) -> None:
    for key in list(values)[:1]:
        if draw.random() < 0.5:
            del values[key]
        elif isinstance(key, str):
            values[key] = draw.choice(STRINGS)
        else:
            ids = values[key].instruction_ids
            draw.shuffle(ids) if draw.random() < 0.5 else ids.append(draw.choice(INTEGERS))


def _change_scalars(values: Any, field: Any, draw: Draw) -> None:
    place = draw.randrange(len(values))
    what = draw.randrange(4)
    if what == 0:
        del values[place]
    elif what == 1:
        values.append(values[place])
    elif what == 2:
        values.extend([values[place]] * draw.choice((10, 70)))
    else:
        values[place] = _scalar(field, draw, values[draw.randrange(len(values))])


def _set(owner: Message, field: Any, draw: Draw) -> None:
    if field.name == "opcode":
        setattr(owner, field.name, draw.choice(OPCODES))
    elif draw.random() < 0.1:
        owner.ClearField(field.name)
    else:
        setattr(owner, field.name, _scalar(field, draw, getattr(owner, field.name)))


def _scalar(field: Any, draw: Draw, value: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return draw.choice((*STRINGS, value * 2))
    if field.type == field.TYPE_BYTES:
        return draw.choice(
            (b"", b"{", b'{"known_trip_count":{"n":"x"}}', b"{" * 5000, value[: len(value) // 2])
        )
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return draw.choice((0.0, -1.0, float("inf"), float("nan")))
    if field.type == field.TYPE_BOOL:
        return not value
    number = draw.choice((*INTEGERS, int(value) + 1, int(value) - 1))
    low, high = _RANGES.get(field.type, (-(2**63), 2**63 - 1))
    return min(max(number, low), high)


_INT32, _ENUM, _UINT32, _UINT64 = 5, 14, 13, 4
_RANGES = {
    _INT32: (-(2**31), 2**31 - 1),
    _ENUM: (-(2**31), 2**31 - 1),
    _UINT32: (0, 2**32 - 1),
    _UINT64: (0, 2**64 - 1),
}


def octets(data: bytes, draw: Draw) -> bytes:
    """The bytes with some flipped, cut, doubled or moved."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(changed) or 1)
        what = draw.randrange(5)
        if what == 0:
            changed[place : place + 1] = bytes([draw.randrange(256)])
        elif what == 1:
            del changed[place : place + draw.choice((1, 4, 100))]
        elif what == 2:
            changed[place:place] = changed[place : place + draw.choice((1, 8, 200))]
        elif what == 3:
            changed[place:place] = b"\xff" * draw.choice((1, 10))
        else:
            del changed[place:]
    return bytes(changed)


def tokens(data: bytes, draw: Draw) -> bytes:
    """The text with some of its tokens dropped, doubled, exchanged or replaced."""
    parts = TOKENS.findall(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, other = draw.randrange(len(parts)), draw.randrange(len(parts))
        what = draw.randrange(5)
        if what == 0:
            parts[place] = b""
        elif what == 1:
            parts[place] *= 2
        elif what == 2:
            parts[place], parts[other] = parts[other], parts[place]
        elif what == 3:
            parts[place] = parts[other]
        else:
            parts[place] = draw.choice(WORDS)
    if draw.random() < 0.03:
        del parts[draw.randrange(len(parts)) :]
    return b"".join(parts)
