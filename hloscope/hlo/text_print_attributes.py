"""The attributes of an instruction as HLO text: the inverse of `text_attributes`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from hloscope.hlo import protos
from hloscope.hlo.replica_groups import decode_pair
from hloscope.hlo.text_print_devices import lists_text, replica_groups_text, sharding_text
from hloscope.hlo.text_print_shape import literal_text, shape_text
from hloscope.hlo.text_scan import MalformedError, group_end

Attribute = tuple[str, str]

# What stands for one called computation; two and more, and all others, are `called_computations`.
_CALLS = {"fusion": "calls", "async-start": "calls", "async-update": "calls", "async-done": "calls"}
_MANY = {"conditional": "branch_computations", "custom-call": "called_computations"}
_PAIRS = {"while": ("body", "condition"), "select-and-scatter": ("select", "scatter")}
_PRECISIONS = {0: "default", 1: "high", 2: "highest", 3: "packed_nibble"}
_NUMBERS = ("channel_id", "exponent_bits", "mantissa_bits")
_COUNTS = ("feature_group_count", "batch_group_count")
_FLAGS = (
    "use_global_device_ids", "is_stable", "indices_are_sorted", "unique_indices", "is_host_transfer",
    "custom_call_has_side_effect",
)  # fmt: skip
_DOT = {
    "lhs_batch_dims": "lhs_batch_dimensions", "lhs_contracting_dims": "lhs_contracting_dimensions",
    "rhs_batch_dims": "rhs_batch_dimensions", "rhs_contracting_dims": "rhs_contracting_dimensions",
}  # fmt: skip
_GATHER = (
    "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
    "start_indices_batching_dims",
)  # fmt: skip
_SCATTER = (
    "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
    "scatter_indices_batching_dims",
)  # fmt: skip
_METADATA = (
    "op_type", "op_name", "source_file", "source_line", "source_end_line", "source_column",
    "source_end_column", "deduplicated_name", "stack_frame_id", "scheduling_name",
)  # fmt: skip
_UNSAFE = re.compile(rb'[^\x20-\x7e]|["\\]')
_ESCAPES = {b"\n": b"\\n", b"\t": b"\\t", b"\r": b"\\r", b'"': b'\\"', b"\\": b"\\\\"}


def attributes(
    proto: protos.Instruction, instructions: Mapping[int, str], computations: Mapping[int, str]
) -> Iterator[Attribute]:
    """Every attribute as (name, value). `instructions` and `computations` name what ids stand for."""
    yield from _by_opcode(proto)
    yield from _called(proto, computations)
    yield from _numbers(proto)
    groups = replica_groups_text(proto)
    if groups is not None:
        yield "replica_groups", groups
    yield from ((name, "true") for name in _FLAGS if getattr(proto, name))
    yield from _layouts(proto)
    if proto.custom_call_target:
        yield "custom_call_target", quoted(proto.custom_call_target)
    if proto.async_execution_thread:
        yield "async_execution_thread", quoted(proto.async_execution_thread)
    if proto.HasField("literal") and proto.opcode != "constant":
        yield "literal", f"{shape_text(proto.literal.shape)} {literal_text(proto.literal)}"
    if proto.control_predecessor_ids:
        names = ", ".join(f"%{instructions[i]}" for i in proto.control_predecessor_ids if i in instructions)
        yield "control-predecessors", f"{{{names}}}"
    yield from _told_by_the_program(proto)


def _told_by_the_program(proto: protos.Instruction) -> Iterator[Attribute]:
    if proto.HasField("sharding"):
        yield "sharding", sharding_text(proto.sharding)
    if proto.HasField("frontend_attributes"):
        yield "frontend_attributes", map_text(proto.frontend_attributes.map)
    if proto.HasField("metadata"):
        yield "metadata", _metadata(proto.metadata)
    if proto.backend_config:
        yield "backend_config", _config(proto.backend_config)


def _by_opcode(proto: protos.Instruction) -> Iterator[Attribute]:
    opcode = proto.opcode
    if opcode == "get-tuple-element":
        yield "index", str(proto.tuple_index)
    if proto.dimensions or opcode in ("broadcast", "reduce", "transpose"):
        listed = opcode != "iota"
        yield (
            ("dimensions", _list(proto.dimensions))
            if listed
            else ("iota_dimension", str(proto.dimensions[0]))
        )
    if proto.slice_dimensions:
        parts = (
            f"[{s.start}:{s.limit}" + (f":{s.stride}]" if s.stride != 1 else "]")
            for s in proto.slice_dimensions
        )
        yield "slice", f"{{{', '.join(parts)}}}"
    if proto.dynamic_slice_sizes:
        sizes = _list(proto.dynamic_slice_sizes)
        is_slice = opcode == "dynamic-slice"
        yield ("dynamic_slice_sizes", sizes) if is_slice else ("slice_sizes", f"{{{sizes}}}")
    if proto.padding_config.dimensions:
        yield "padding", "x".join(map(_padding, proto.padding_config.dimensions))
    if proto.HasField("window"):
        yield "window", f"{{{' '.join(_window(proto.window.dimensions))}}}"
    if proto.HasField("convolution_dimension_numbers"):
        yield "dim_labels", _dim_labels(proto.convolution_dimension_numbers)
    yield from _dimension_numbers(proto)
    if levels := [_PRECISIONS.get(p) for p in proto.precision_config.operand_precision]:
        yield "operand_precision", f"{{{','.join(level or 'default' for level in levels)}}}"
    if proto.comparison_direction:
        yield "direction", proto.comparison_direction
    if proto.comparison_type:
        yield "type", proto.comparison_type
    if proto.fusion_kind:
        yield "kind", proto.fusion_kind


def _dimension_numbers(proto: protos.Instruction) -> Iterator[Attribute]:
    for name, field in _DOT.items():
        ragged = proto.ragged_dot_dimension_numbers.dot_dimension_numbers
        sizes = getattr(ragged if proto.opcode == "ragged-dot" else proto.dot_dimension_numbers, field)
        if sizes:
            yield name, _list(sizes)
    if proto.HasField("ragged_dot_dimension_numbers"):
        yield "lhs_ragged_dims", _list(proto.ragged_dot_dimension_numbers.lhs_ragged_dimensions)
        yield "rhs_group_dims", _list(proto.ragged_dot_dimension_numbers.rhs_group_dimensions)
    if proto.HasField("gather_dimension_numbers"):
        numbers = proto.gather_dimension_numbers
        yield from _indices(numbers, _GATHER, numbers.index_vector_dim)
        yield "slice_sizes", _list(proto.gather_slice_sizes)
    if proto.HasField("scatter_dimension_numbers"):
        scatter = proto.scatter_dimension_numbers
        yield from _indices(scatter, _SCATTER, scatter.index_vector_dim)


def _indices(numbers: object, names: tuple[str, ...], index_vector_dim: int) -> Iterator[Attribute]:
    """The last two lists are newer than the rest, and older readers do not know them."""
    for name in names:
        values: Iterable[int] = getattr(numbers, name)
        if values or name in names[:3]:
            yield name, _list(values)
    yield "index_vector_dim", str(index_vector_dim)


def _called(proto: protos.Instruction, computations: Mapping[int, str]) -> Iterator[Attribute]:
    names = [f"%{computations[i]}" for i in proto.called_computation_ids]
    opcode = proto.opcode
    if not names:
        return
    if opcode in _PAIRS and len(names) == 2:
        # A loop's condition stands before its body, as the reader (and XLA) has it.
        pairs = list(zip(_PAIRS[opcode], names, strict=True))
        yield from reversed(pairs) if opcode == "while" else pairs
    elif opcode in _MANY or len(names) > 1:
        yield _MANY.get(opcode, "called_computations"), f"{{{', '.join(names)}}}"
    else:
        yield _CALLS.get(opcode, "to_apply"), names[0]


def _numbers(proto: protos.Instruction) -> Iterator[Attribute]:
    yield from ((name, str(getattr(proto, name))) for name in _NUMBERS if getattr(proto, name))
    yield from ((name, str(getattr(proto, name))) for name in _COUNTS if getattr(proto, name) > 1)
    if proto.source_target_pairs:
        yield "source_target_pairs", lists_text(map(decode_pair, proto.source_target_pairs))
    if proto.output_operand_aliasing:
        parts = (
            f"{_list(a.output_shape_index)}: ({a.operand_index}, {_list(a.operand_shape_index)})"
            for a in proto.output_operand_aliasing
        )
        yield "output_to_operand_aliasing", f"{{{', '.join(parts)}}}"


def _layouts(proto: protos.Instruction) -> Iterator[Attribute]:
    if proto.operand_shapes_with_layout:
        shapes = ", ".join(map(shape_text, proto.operand_shapes_with_layout))
        yield "operand_layout_constraints", f"{{{shapes}}}"
    elif proto.constrain_layout:
        yield "constrain_layout", "true"


def _list(numbers: Iterable[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _padding(dimension: protos.PaddingConfig.Dimension) -> str:
    ends = f"{dimension.edge_padding_low}_{dimension.edge_padding_high}"
    return f"{ends}_{dimension.interior_padding}" if dimension.interior_padding else ends


def _window(dimensions: Iterable[protos.WindowDimension]) -> Iterator[str]:
    given = list(dimensions)
    if not given:
        return
    yield "size=" + "x".join(str(d.size) for d in given)
    if any(d.stride != 1 for d in given):
        yield "stride=" + "x".join(str(d.stride) for d in given)
    if any(d.padding_low or d.padding_high for d in given):
        yield "pad=" + "x".join(f"{d.padding_low}_{d.padding_high}" for d in given)
    if any(d.base_dilation != 1 for d in given):
        yield "lhs_dilate=" + "x".join(str(d.base_dilation) for d in given)
    if any(d.window_dilation != 1 for d in given):
        yield "rhs_dilate=" + "x".join(str(d.window_dilation) for d in given)
    if any(d.window_reversal for d in given):
        yield "rhs_reversal=" + "x".join(str(int(d.window_reversal)) for d in given)


def _dim_labels(numbers: protos.ConvolutionDimensionNumbers) -> str:
    lhs = {numbers.input_batch_dimension: "b", numbers.input_feature_dimension: "f"}
    kernel = {numbers.kernel_input_feature_dimension: "i", numbers.kernel_output_feature_dimension: "o"}
    output = {numbers.output_batch_dimension: "b", numbers.output_feature_dimension: "f"}
    lhs.update((d, str(i)) for i, d in enumerate(numbers.input_spatial_dimensions))
    kernel.update((d, str(i)) for i, d in enumerate(numbers.kernel_spatial_dimensions))
    output.update((d, str(i)) for i, d in enumerate(numbers.output_spatial_dimensions))
    left, middle, right = ("".join(p[d] for d in sorted(p)) for p in (lhs, kernel, output))
    return f"{left}_{middle}->{right}"


def _metadata(metadata: protos.OpMetadata) -> str:
    parts: list[str] = []
    for name in _METADATA:
        value: str | int = getattr(metadata, name)
        if value:
            parts.append(f"{name}={quoted(value) if isinstance(value, str) else value}")
    return f"{{{' '.join(parts)}}}"


def map_text(attributes: Mapping[str, str]) -> str:
    """Frontend attributes in braces, sorted."""
    return f"{{{','.join(f'{key}={quoted(attributes[key])}' for key in sorted(attributes))}}}"


def _config(data: bytes) -> str:
    """As it is where it is an object in braces that hold together, else as a string."""
    if data.startswith(b"{") and data.isascii():
        text = data.decode()
        try:
            if group_end(text, 0) == len(text):
                return text
        except MalformedError:
            pass
    return quoted(data)


def quoted(text: str | bytes) -> str:
    """A string in quotes, what is no printable ASCII escaped byte by byte."""
    data = text.encode() if isinstance(text, str) else text
    return '"' + _UNSAFE.sub(_escaped, data).decode() + '"'


def _escaped(found: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(found[0]) or b"\\%03o" % found[0][0]
