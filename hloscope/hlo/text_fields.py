"""Attribute values of HLO text that are small languages of their own: windows, paddings, dim labels, metadata."""

from __future__ import annotations

import re

from hloscope.hlo import protos
from hloscope.hlo.text_scan import (
    STRING,
    MalformedError,
    group_end,
    inner,
    integer,
    integer_lists,
    integers,
    split,
    string,
)

_PLAIN_METADATA = re.compile(r'\{op_name="([^"\\]*+)"(?: stack_frame_id=(\d{1,9}))?\}', re.ASCII)
_METADATA = re.compile(rf"(\w++)=({STRING}|[^\s{{}}\",]++)", re.ASCII | re.DOTALL)
_METADATA_TEXTS = frozenset({"op_type", "op_name", "source_file", "deduplicated_name", "scheduling_name"})
_METADATA_NUMBERS = frozenset(
    {"source_line", "source_end_line", "source_column", "source_end_column", "stack_frame_id"}
)
_KEY = re.compile(r"\s*+,?\s*+([^\s,={}\"]++)\s*+=\s*+")
_FRONTEND_VALUE = re.compile(rf"{STRING}|[^\s,{{}}\"]++", re.DOTALL)
_WINDOW = re.compile(r"\s*+,?\s*+(\w++)=([^\s,{}]++)", re.ASCII)
_SLICE = re.compile(r"\[\s*(\d{1,18})\s*:\s*(\d{1,18})\s*(?::\s*(\d{1,18})\s*)?\]", re.ASCII)
_LABELS = re.compile(r"([0-9bf?]+)_([0-9io?]+)->([0-9bf?]+)")
_ALIAS = re.compile(r"(\{[^{}]*\})\s*:\s*\(\s*(\d+)\s*,\s*(\{[^{}]*\})\s*(?:,\s*([\w-]+)\s*)?\)", re.ASCII)


def metadata(proto: protos.OpMetadata, text: str) -> None:
    """`{op_name="..." stack_frame_id=44}`; what the message does not hold is left out."""
    plain = _PLAIN_METADATA.fullmatch(text)
    if plain:
        proto.op_name = plain[1]
        if plain[2]:
            proto.stack_frame_id = int(plain[2])
        return
    proto.SetInParent()
    for name, value in _METADATA.findall(inner(text)):
        if name in _METADATA_TEXTS:
            setattr(proto, name, string(value))
        elif name in _METADATA_NUMBERS:
            setattr(proto, name, integer(value))


def frontend_attributes(text: str) -> dict[str, str]:
    """`{a="x",b={"json": 1}}` as a mapping; a JSON object stays the text that it is."""
    body = inner(text).rstrip(", \t\r\n")
    found: dict[str, str] = {}
    at = 0
    while at < len(body):
        key = _KEY.match(body, at)
        if key is None:
            raise MalformedError("expected name=value among the frontend attributes")
        at = key.end()
        if body[at : at + 1] == "{":
            end = group_end(body, at)
            value = body[at:end]
        else:
            word = _FRONTEND_VALUE.match(body, at)
            if word is None:
                raise MalformedError(f"the frontend attribute {key[1]} has no value")
            end = word.end()
            value = string(word[0]) if word[0][0] == '"' else word[0]
        found[key[1]] = value
        at = end
    return found


def window(proto: protos.Window, text: str) -> None:
    """`{size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=.. rhs_dilate=.. rhs_reversal=..}`."""
    given: dict[str, list[str]] = {}
    for name, value in _WINDOW.findall(inner(text)):
        given[name] = value.split("x")
    sizes = given.get("size", [])
    if any(len(values) != len(sizes) for values in given.values()):
        raise MalformedError("the parts of this window differ in length")
    proto.SetInParent()
    for i, size in enumerate(sizes):
        low, _, high = given["pad"][i].partition("_") if "pad" in given else ("0", "_", "0")
        proto.dimensions.add(
            size=integer(size),
            stride=integer(given["stride"][i]) if "stride" in given else 1,
            padding_low=integer(low),
            padding_high=integer(high),
            window_dilation=integer(given["rhs_dilate"][i]) if "rhs_dilate" in given else 1,
            base_dilation=integer(given["lhs_dilate"][i]) if "lhs_dilate" in given else 1,
            window_reversal="rhs_reversal" in given and given["rhs_reversal"][i] == "1",
        )


def padding(proto: protos.PaddingConfig, text: str) -> None:
    """`0_8x1_2_3`: low, high and interior padding of every dimension; empty for a scalar."""
    proto.SetInParent()
    for part in filter(None, text.split("x")):
        numbers = part.split("_")
        if not 2 <= len(numbers) <= 3:
            raise MalformedError("expected low_high or low_high_interior for every dimension")
        low, high, interior = (integer(n) for n in (*numbers, "0")[:3])
        proto.dimensions.add(edge_padding_low=low, edge_padding_high=high, interior_padding=interior)


def slices(text: str) -> list[protos.SliceDimensions]:
    """`{[0:16384:2], [3:4]}`: start, limit and stride of every dimension."""
    found: list[protos.SliceDimensions] = []
    for part in split(inner(text)):
        bounds = _SLICE.fullmatch(part)
        if bounds is None:
            raise MalformedError("expected [start:limit] or [start:limit:stride] for every dimension")
        start, limit, stride = bounds.groups()
        found.append(protos.SliceDimensions(start=int(start), limit=int(limit), stride=int(stride or 1)))
    return found


def dim_labels(proto: protos.ConvolutionDimensionNumbers, text: str) -> None:
    """`b01f_01io->b01f`: which dimension of lhs, kernel and output is what."""
    found = _LABELS.fullmatch(text)
    if found is None:
        raise MalformedError("expected dimension labels such as b01f_01io->b01f")
    lhs, kernel, output = found.groups()
    proto.input_batch_dimension, proto.input_feature_dimension = _place(lhs, "b"), _place(lhs, "f")
    proto.kernel_input_feature_dimension = _place(kernel, "i")
    proto.kernel_output_feature_dimension = _place(kernel, "o")
    proto.output_batch_dimension, proto.output_feature_dimension = _place(output, "b"), _place(output, "f")
    proto.input_spatial_dimensions.extend(_spatial(lhs))
    proto.kernel_spatial_dimensions.extend(_spatial(kernel))
    proto.output_spatial_dimensions.extend(_spatial(output))


def _place(labels: str, label: str) -> int:
    if labels.count(label) != 1:
        raise MalformedError(f"the dimension labels {labels} need one {label}")
    return labels.index(label)


def _spatial(labels: str) -> list[int]:
    """The places of the spatial dimensions 0, 1, ..."""
    found = sorted((label, place) for place, label in enumerate(labels) if label.isdecimal())
    if [label for label, _ in found] != [str(i) for i in range(len(found))]:
        raise MalformedError(f"the dimension labels {labels} do not number the spatial dimensions")
    return [place for _, place in found]


def aliases(text: str) -> list[tuple[list[int], int, list[int], str]]:
    """`{0}: (1, {2}, may-alias)` as (output index, operand or parameter, its index, kind or "")."""
    body = inner(text)
    found = list(_ALIAS.finditer(body))
    if _ALIAS.sub("", body).strip(", \t\r\n"):
        raise MalformedError("expected {output index}: (parameter, {index})")
    return [(integers(inner(a[1])), integer(a[2]), integers(inner(a[3])), a[4] or "") for a in found]


def pairs(text: str) -> list[tuple[int, int]]:
    """`{{0,1},{1,2}}` as pairs."""
    found = integer_lists(text)
    if any(len(pair) != 2 for pair in found):
        raise MalformedError("expected pairs {source,target}")
    return [(source, target) for source, target in found]
