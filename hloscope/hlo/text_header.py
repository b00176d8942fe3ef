"""The head of HLO text: the module's attributes and its tables of stack frames."""

from __future__ import annotations

import re
from collections.abc import Callable

from hloscope.hlo import protos
from hloscope.hlo.text_fields import aliases, frontend_attributes
from hloscope.hlo.text_scan import (
    STRING,
    MalformedError,
    Scanner,
    boolean,
    group_end,
    inner,
    integer,
    integers,
    split,
    string,
)
from hloscope.hlo.text_shape import Shapes

_HEADER = re.compile(r"\s*+HloModule\s++%?([^\s,:{]++)\s*+:?", re.ASCII)
_TABLE = re.compile(r"\s*+(FileNames|FunctionNames|FileLocations|StackFrames)(?=\s)", re.ASCII)
_TEXT_ENTRY = re.compile(rf"\s*+\d++\s++({STRING})", re.ASCII | re.DOTALL)
_NUMBER_ENTRY = re.compile(r"\s*+\d++\s++\{([^{}]*+)\}", re.ASCII)
_NUMBERS = re.compile(r"(\w+)=(\d{1,9})(?!\d)", re.ASCII)
_DONOR = re.compile(r"\s*+\(\s*+(\d{1,9})\s*+,\s*+(\{[^{}]*+\})\s*+\)\s*+", re.ASCII)
_ALIAS_KINDS = {"": 1, "may-alias": 1, "must-alias": 2}


def read_header(scanner: Scanner, module: protos.HloModuleProto) -> bool:
    """Read `HloModule name, attributes` and the tables; whether the module says that it is scheduled.

    Text written by hand may begin with its first computation; its module has no name yet.
    """
    if scanner.text.startswith("HloModule", scanner.blanks()):
        module.name = scanner.expect(_HEADER, "HloModule and the module's name")[1]
    is_scheduled = False
    for name, value, start in scanner.attributes():
        setter = _SETTERS.get(name)
        try:
            if name == "is_scheduled":
                is_scheduled = boolean(value)
            elif setter is not None:
                setter(module, value)
        except ValueError as error:
            raise scanner.error(f"{name}: {error}", start) from error
    frames = module.stack_frame_index
    while table := scanner.match(_TABLE):
        _read_table(scanner, table[1], frames)
    _shift_parents(frames)
    return is_scheduled


def _input_output_alias(module: protos.HloModuleProto, value: str) -> None:
    for output, parameter, index, kind in aliases(value):
        if kind not in _ALIAS_KINDS:
            raise MalformedError(f"there is no alias kind {kind!r}")
        module.input_output_alias.entries.add(
            output_shape_index=output,
            parameter_number=parameter,
            parameter_shape_index=index,
            kind=_ALIAS_KINDS[kind],
        )


def _buffer_donor(module: protos.HloModuleProto, value: str) -> None:
    for part in split(inner(value)):
        found = _DONOR.fullmatch(part)
        if found is None:
            raise MalformedError("expected (parameter, {index})")
        module.buffer_donor.entries.add(
            parameter_number=int(found[1]), parameter_shape_index=integers(inner(found[2]))
        )


def _entry_layout(module: protos.HloModuleProto, value: str) -> None:
    text = inner(value).strip()
    end = group_end(text, 0) if text.startswith("(") else 0
    result = text[end:].lstrip()
    if not result.startswith("->"):
        raise MalformedError("expected (shapes)->shape")
    shapes = Shapes()
    shape = module.host_program_shape
    shape.parameters.extend(shapes.parse(text[:end]).tuple_shapes)
    shape.result.CopyFrom(shapes.parse(result.removeprefix("->").strip()))


def _replica_count(module: protos.HloModuleProto, value: str) -> None:
    assignment = module.device_assignment
    assignment.replica_count = integer(value)
    assignment.computation_count = assignment.computation_count or 1


def _num_partitions(module: protos.HloModuleProto, value: str) -> None:
    assignment = module.device_assignment
    assignment.computation_count = integer(value)
    assignment.replica_count = assignment.replica_count or 1


def _frontend_attributes(module: protos.HloModuleProto, value: str) -> None:
    module.frontend_attributes.map.update(frontend_attributes(value))


_SETTERS: dict[str, Callable[[protos.HloModuleProto, str], None]] = {
    "input_output_alias": _input_output_alias,
    "buffer_donor": _buffer_donor,
    "entry_computation_layout": _entry_layout,
    "replica_count": _replica_count,
    "num_partitions": _num_partitions,
    "frontend_attributes": _frontend_attributes,
}


def _read_table(scanner: Scanner, kind: str, frames: protos.StackFrameIndex) -> None:
    if kind in ("FileNames", "FunctionNames"):
        names = frames.file_names if kind == "FileNames" else frames.function_names
        while entry := scanner.match(_TEXT_ENTRY):
            names.append(string(entry[1]))
        return
    while entry := scanner.match(_NUMBER_ENTRY):
        numbers = {name: int(number) for name, number in _NUMBERS.findall(entry[1])}
        if kind == "FileLocations":
            frames.file_locations.add(
                file_name_id=numbers.get("file_name_id", 0),
                function_name_id=numbers.get("function_name_id", 0),
                line=numbers.get("line", 0),
                column=numbers.get("column", 0),
                end_line=numbers.get("end_line", 0),
                end_column=numbers.get("end_column", 0),
            )
        else:
            frames.stack_frames.add(
                file_location_id=numbers.get("file_location_id", 0),
                parent_frame_id=numbers.get("parent_frame_id", 0),
            )


def _shift_parents(frames: protos.StackFrameIndex) -> None:
    """Text counts a frame's parent from one, with one for "none"; a message has zero there.

    A table that names parent zero itself is taken as it is.
    """
    if all(frame.parent_frame_id for frame in frames.stack_frames):
        for frame in frames.stack_frames:
            frame.parent_frame_id -= 1
