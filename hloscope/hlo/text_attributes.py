"""The attributes of an instruction in HLO text, each set in its field of the instruction's message.

What the message has no field for (`k`, `origin`, ...) is left out, not refused: a
printer that is newer than this reader only adds to what can be said of an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from hloscope.hlo import protos, text_devices, text_fields
from hloscope.hlo.text_literal import literal
from hloscope.hlo.text_scan import (
    MalformedError,
    boolean,
    inner,
    integer,
    integers,
    split,
    string,
    string_bytes,
)
from hloscope.hlo.text_shape import ARRAY, Shapes

_NAME = re.compile(r"%?([\w.\-]+)", re.ASCII)
# Zeros, ones and the like: as long as their texts are, they come again.
_SHORT = 32


class Context(Protocol):
    """What attributes need to know of the module that is being read."""

    shapes: Shapes

    def computation_id(self, name: str) -> int:
        """The id of a computation, whether or not it was read yet."""
        ...

    def instruction_id(self, name: str) -> int:
        """The id of an instruction of the computation that is being read."""
        ...


# These have a group count of one where text says nothing.
_GROUPED = frozenset({"convolution", "custom-call"})
# Attributes that name computations. Text written by hand may spell one out instead.
CALLS = frozenset(
    {"calls", "to_apply", "body", "condition", "select", "scatter", "true_computation", "false_computation"}
)

Setter = Callable[[Context, protos.Instruction, str], None]


def set_attribute(context: Context, proto: protos.Instruction, name: str, value: str) -> bool:
    """Set an attribute; False if the message has no field for it. Raises ValueError where the value is wrong."""
    setter = _SETTERS.get(name)
    if setter is None:
        return False
    setter(context, proto, value)
    return True


def set_argument(context: Context, proto: protos.Instruction, opcode: str, text: str) -> None:
    """Set what stands in place of operands: a parameter's number, a constant's literal. Raises ValueError."""
    if opcode == "parameter":
        proto.parameter_number = integer(text)
    elif opcode == "constant" and proto.HasField("shape"):
        made = (
            _constant(proto.shape, text)
            if len(text) < _SHORT
            else literal(context.shapes.of(proto.shape), text)
        )
        if made is not None:
            proto.literal.CopyFrom(made)
    elif opcode in _GROUPED:
        proto.feature_group_count = proto.batch_group_count = 1


@lru_cache(maxsize=2**12)
def _constant(shape: bytes, text: str) -> protos.Literal | None:
    """The literal of a constant with few elements. It is shared: copy it, do not change it."""
    return literal(protos.Shape.FromString(shape), text)


def _name(value: str) -> str:
    found = _NAME.fullmatch(value)
    if found is None:
        raise MalformedError("expected a name")
    return found[1]


def _metadata(_: Context, proto: protos.Instruction, value: str) -> None:
    text_fields.metadata(proto.metadata, value)


def _backend_config(_: Context, proto: protos.Instruction, value: str) -> None:
    proto.backend_config = value.encode() if value[:1] == "{" else string_bytes(value)


def _frontend_attributes(_: Context, proto: protos.Instruction, value: str) -> None:
    proto.frontend_attributes.map.update(text_fields.frontend_attributes(value))


def _computation(context: Context, proto: protos.Instruction, value: str) -> None:
    proto.called_computation_ids.append(context.computation_id(_name(value)))


def _first(context: Context, proto: protos.Instruction, value: str) -> None:
    """A loop's text has its condition before its body, a message the body first."""
    proto.called_computation_ids.insert(0, context.computation_id(_name(value)))


def _computations(context: Context, proto: protos.Instruction, value: str) -> None:
    for name in split(inner(value)) if value[:1] == "{" else [value]:
        _computation(context, proto, name)


def _predecessors(context: Context, proto: protos.Instruction, value: str) -> None:
    ids = (context.instruction_id(_name(name)) for name in split(inner(value)))
    proto.control_predecessor_ids.extend(ids)


def _operand_layouts(context: Context, proto: protos.Instruction, value: str) -> None:
    proto.constrain_layout = True
    proto.operand_shapes_with_layout.extend(context.shapes.parse(f"({inner(value)})").tuple_shapes)


def _literal(context: Context, proto: protos.Instruction, value: str) -> None:
    typed = ARRAY.match(value)
    if value.startswith("("):
        return  # a tuple of literals: nothing asks for it
    if typed is None:
        raise MalformedError("expected a literal with its shape")
    made = literal(context.shapes.parse(typed[0]), value[typed.end() :])
    if made is not None:
        proto.literal.CopyFrom(made)


def _replica_groups(_: Context, proto: protos.Instruction, value: str) -> None:
    text_devices.replica_groups(proto, value)


def _pairs(_: Context, proto: protos.Instruction, value: str) -> None:
    for source, target in text_fields.pairs(value):
        pair = protos.SourceTarget(source=source, target=target)
        proto.source_target_pairs.append(pair.SerializeToString())


def _output_aliasing(_: Context, proto: protos.Instruction, value: str) -> None:
    for output, operand, index, _kind in text_fields.aliases(value):
        proto.output_operand_aliasing.add(
            output_shape_index=output, operand_index=operand, operand_shape_index=index
        )


def _sharding(_: Context, proto: protos.Instruction, value: str) -> None:
    proto.sharding.CopyFrom(text_devices.sharding(value))


def _window(_: Context, proto: protos.Instruction, value: str) -> None:
    text_fields.window(proto.window, value)


def _precision(_: Context, proto: protos.Instruction, value: str) -> None:
    levels = [_PRECISIONS.get(level.strip()) for level in inner(value).split(",")]
    if None not in levels:
        proto.precision_config.operand_precision.extend(level for level in levels if level is not None)


def _padding(_: Context, proto: protos.Instruction, value: str) -> None:
    text_fields.padding(proto.padding_config, value)


def _slice(_: Context, proto: protos.Instruction, value: str) -> None:
    proto.slice_dimensions.extend(text_fields.slices(value))


def _dim_labels(_: Context, proto: protos.Instruction, value: str) -> None:
    text_fields.dim_labels(proto.convolution_dimension_numbers, value)


def _thread(_: Context, proto: protos.Instruction, value: str) -> None:
    name = string(value)
    proto.async_execution_thread = "" if name == "main" else name


def _dimension(_: Context, proto: protos.Instruction, value: str) -> None:
    proto.dimensions.append(integer(value))


def _number(field: str) -> Setter:
    return lambda _, proto, value: setattr(proto, field, integer(value))


def _flag(field: str) -> Setter:
    return lambda _, proto, value: setattr(proto, field, boolean(value))


def _text(field: str) -> Setter:
    return lambda _, proto, value: setattr(proto, field, string(value))


def _word(field: str) -> Setter:
    return lambda _, proto, value: setattr(proto, field, _name(value))


def _list(field: str) -> Setter:
    return lambda _, proto, value: getattr(proto, field).extend(integers(inner(value)))


def _slice_sizes(_: Context, proto: protos.Instruction, value: str) -> None:
    """Of a gather one list; of a collective-permute of slices one list for each, all in one field."""
    if proto.opcode == "gather":
        proto.gather_slice_sizes.extend(integers(inner(value)))
        return
    for part in split(inner(value)):
        proto.dynamic_slice_sizes.extend(integers(inner(part)))


def _index_vector_dim(_: Context, proto: protos.Instruction, value: str) -> None:
    """Gathers and scatters share this attribute's name."""
    numbers = proto.scatter_dimension_numbers if proto.opcode == "scatter" else proto.gather_dimension_numbers
    numbers.index_vector_dim = integer(value)


def _indices(message: str, field: str) -> Setter:
    def set_(_: Context, proto: protos.Instruction, value: str) -> None:
        numbers = getattr(proto, message)
        numbers.SetInParent()
        getattr(numbers, field).extend(integers(inner(value)))

    return set_


def _dot(field: str) -> Setter:
    def set_(_: Context, proto: protos.Instruction, value: str) -> None:
        ragged = proto.opcode == "ragged-dot"
        numbers = (
            proto.ragged_dot_dimension_numbers.dot_dimension_numbers
            if ragged
            else proto.dot_dimension_numbers
        )
        getattr(numbers, field).extend(integers(inner(value)))

    return set_


_PRECISIONS = {"default": 0, "high": 1, "highest": 2, "packed_nibble": 3}
_NUMBERS = ("channel_id", "exponent_bits", "mantissa_bits", "feature_group_count", "batch_group_count")
_FLAGS = (
    "is_stable", "use_global_device_ids", "indices_are_sorted", "unique_indices", "is_host_transfer",
    "custom_call_has_side_effect", "constrain_layout",
)  # fmt: skip
_GATHER = (
    "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
    "start_indices_batching_dims",
)  # fmt: skip
_SCATTER = (
    "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
    "scatter_indices_batching_dims",
)  # fmt: skip

_SETTERS: dict[str, Setter] = {
    "metadata": _metadata,
    "backend_config": _backend_config,
    "frontend_attributes": _frontend_attributes,
    "sharding": _sharding,
    "control-predecessors": _predecessors,
    "calls": _computations,
    "to_apply": _computation,
    "body": _first,
    "condition": _computation,
    "select": _first,
    "scatter": _computation,
    "true_computation": _first,
    "false_computation": _computation,
    "branch_computations": _computations,
    "called_computations": _computations,
    "kind": _word("fusion_kind"),
    "custom_call_target": _text("custom_call_target"),
    "async_execution_thread": _thread,
    "operand_layout_constraints": _operand_layouts,
    "output_to_operand_aliasing": _output_aliasing,
    "literal": _literal,
    "replica_groups": _replica_groups,
    "source_target_pairs": _pairs,
    "dimensions": _list("dimensions"),
    "iota_dimension": _dimension,
    "inferred_dimension": _dimension,
    "dynamic_slice_sizes": _list("dynamic_slice_sizes"),
    "slice_sizes": _slice_sizes,
    "slice": _slice,
    "padding": _padding,
    "operand_precision": _precision,
    "window": _window,
    "dim_labels": _dim_labels,
    "index": _number("tuple_index"),
    "direction": _word("comparison_direction"),
    "type": _word("comparison_type"),
    "index_vector_dim": _index_vector_dim,
    "lhs_contracting_dims": _dot("lhs_contracting_dimensions"),
    "rhs_contracting_dims": _dot("rhs_contracting_dimensions"),
    "lhs_batch_dims": _dot("lhs_batch_dimensions"),
    "rhs_batch_dims": _dot("rhs_batch_dimensions"),
    "lhs_ragged_dims": _indices("ragged_dot_dimension_numbers", "lhs_ragged_dimensions"),
    "rhs_group_dims": _indices("ragged_dot_dimension_numbers", "rhs_group_dimensions"),
    **{name: _number(name) for name in _NUMBERS},
    **{name: _flag(name) for name in _FLAGS},
    **{name: _indices("gather_dimension_numbers", name) for name in _GATHER},
    **{name: _indices("scatter_dimension_numbers", name) for name in _SCATTER},
}
