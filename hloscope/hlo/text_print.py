"""A module as HLO text, which this project's reader (and XLA's) reads back as the same module.

What text cannot hold is not in it: instruction ids, the devices' hardware ids, the buffer assignment, and
fields of XLA's messages that this project does not declare. A module that is exported to be kept should be
kept as its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from hloscope.errors import UserError
from hloscope.hlo import protos
from hloscope.hlo.module import Module
from hloscope.hlo.text_print_attributes import attributes, map_text, quoted
from hloscope.hlo.text_print_shape import literal_text, shape_text

_NAME = re.compile(r"[\w.\-]+", re.ASCII)
_MODULE_NAME = re.compile(r"[^\s,:{]+")
_ALIAS_KINDS = {1: "may-alias", 2: "must-alias"}


def print_text(module: Module) -> Iterator[str]:
    """The module as pieces of HLO text, one computation each. Raises UserError for what text cannot spell."""
    proto = module.proto
    yield _header(module)
    yield from _tables(proto.stack_frame_index)
    names = {c.id: _checked(c.name) for c in proto.computations}
    shapes: dict[bytes, str] = {}
    for computation in proto.computations:
        yield "\n"
        yield from _computation(computation, proto, names, shapes)


def _header(module: Module) -> str:
    proto = module.proto
    if not _MODULE_NAME.fullmatch(proto.name):
        raise UserError(f"HLO text cannot spell the module name {proto.name!r}: export the proto")
    parts = [f"HloModule {proto.name}"]
    if module.is_scheduled:
        parts.append("is_scheduled=true")
    if proto.input_output_alias.entries:
        parts.append(f"input_output_alias={{ {', '.join(map(_alias, proto.input_output_alias.entries))} }}")
    if proto.buffer_donor.entries:
        donors = (
            f"({e.parameter_number}, {_index(e.parameter_shape_index)})" for e in proto.buffer_donor.entries
        )
        parts.append(f"buffer_donor={{ {', '.join(donors)} }}")
    if proto.HasField("host_program_shape"):
        layout = proto.host_program_shape
        given = ", ".join(map(shape_text, layout.parameters))
        parts.append(f"entry_computation_layout={{({given})->{shape_text(layout.result)}}}")
    for name, count in (
        ("replica_count", proto.device_assignment.replica_count),
        ("num_partitions", proto.device_assignment.computation_count),
    ):
        parts += [f"{name}={count}"] if count > 1 else []
    if proto.frontend_attributes.map:
        parts.append(f"frontend_attributes={map_text(proto.frontend_attributes.map)}")
    return ", ".join(parts) + "\n"


def _alias(entry: protos.InputOutputAlias.Entry) -> str:
    kind = f", {_ALIAS_KINDS[entry.kind]}" if entry.kind in _ALIAS_KINDS else ""
    source = f"{entry.parameter_number}, {_index(entry.parameter_shape_index)}{kind}"
    return f"{_index(entry.output_shape_index)}: ({source})"


def _index(index: Iterable[int]) -> str:
    return f"{{{','.join(map(str, index))}}}"


def _tables(frames: protos.StackFrameIndex) -> Iterator[str]:
    """The tables of stack frames; text counts a frame's parent from one, with one for "none"."""
    if not frames.stack_frames:
        return
    yield from _table("FileNames", map(quoted, frames.file_names))
    yield from _table("FunctionNames", map(quoted, frames.function_names))
    places = (
        f"{{file_name_id={at.file_name_id} function_name_id={at.function_name_id} line={at.line} "
        f"end_line={at.end_line} column={at.column} end_column={at.end_column}}}"
        for at in frames.file_locations
    )
    yield from _table("FileLocations", places)
    stack = (
        f"{{file_location_id={f.file_location_id} parent_frame_id={f.parent_frame_id + 1}}}"
        for f in frames.stack_frames
    )
    yield from _table("StackFrames", stack)


def _table(name: str, entries: Iterable[str]) -> Iterator[str]:
    yield f"\n{name}\n"
    yield from (f"{number} {entry}\n" for number, entry in enumerate(entries, 1))


def _computation(
    computation: protos.Computation,
    module: protos.HloModuleProto,
    names: Mapping[int, str],
    shapes: dict[bytes, str],
) -> Iterator[str]:
    by_id = {i.id: i for i in computation.instructions}
    spelled = _spellings(computation, by_id)
    parameters = sorted(
        (i for i in computation.instructions if i.opcode == "parameter"), key=lambda i: i.parameter_number
    )
    given = ", ".join(f"{p.name}: {_shape(p, shapes)}" for p in parameters)
    entry = "ENTRY " if computation.id == module.entry_computation_id else ""
    result = _shape(by_id[computation.root_id], shapes)
    yield f"{entry}%{names[computation.id]} ({given}) -> {result} {{\n"
    for instruction in _in_order(computation, by_id, module):
        if "#" not in spelled[instruction.id]:
            root = "ROOT " if instruction.id == computation.root_id else ""
            yield f"  {root}{_instruction(instruction, spelled, names, shapes)}\n"
    thread = computation.execution_thread
    yield f'}}, execution_thread="{thread}"\n' if thread and thread != "main" else "}\n"


def _in_order(
    computation: protos.Computation, by_id: Mapping[int, protos.Instruction], module: protos.HloModuleProto
) -> Iterable[protos.Instruction]:
    """As scheduled: in text the order of the instructions is the schedule."""
    if computation.id not in module.schedule.sequences:
        return computation.instructions
    ids = module.schedule.sequences[computation.id].instruction_ids
    if len(ids) != len(by_id) or set(by_id) != set(ids):
        return computation.instructions
    return [by_id[i] for i in ids]


def _spellings(computation: protos.Computation, by_id: Mapping[int, protos.Instruction]) -> dict[int, str]:
    """How each instruction is named. A module that came from text has elements without a name of their own:
    `%x#0`, which have no line."""
    found: dict[int, str] = {}
    for instruction in computation.instructions:
        name = instruction.name
        if (
            "#" in name
            and instruction.opcode == "get-tuple-element"
            and instruction.id != computation.root_id
        ):
            name = f"{found[instruction.operand_ids[0]]}#{instruction.tuple_index}"
        else:
            name = _checked(name.replace("#", ".element."))
        found[instruction.id] = name
    return found


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"HLO text cannot spell the name {name!r}: export the proto")
    return name


def _shape(proto: protos.Instruction, shapes: dict[bytes, str]) -> str:
    """A module has few distinct shapes: each is spelt once."""
    key = proto.shape
    known = shapes.get(key)
    if known is None:
        known = shapes[key] = shape_text(protos.Shape.FromString(key))
    return known


def _instruction(
    proto: protos.Instruction,
    spelled: Mapping[int, str],
    computations: Mapping[int, str],
    shapes: dict[bytes, str],
) -> str:
    tail = "".join(f", {name}={value}" for name, value in attributes(proto, spelled, computations))
    return (
        f"%{spelled[proto.id]} = {_shape(proto, shapes)} {proto.opcode}({_arguments(proto, spelled)}){tail}"
    )


def _arguments(proto: protos.Instruction, spelled: Mapping[int, str]) -> str:
    if proto.opcode == "parameter":
        return str(proto.parameter_number)
    if proto.opcode == "constant":
        return literal_text(proto.literal) if proto.HasField("literal") else "{...}"
    return ", ".join(f"%{spelled[i]}" for i in proto.operand_ids)
