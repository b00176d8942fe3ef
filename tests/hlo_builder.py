"""Small modules for tests, written down in Python.

    hlo = HloBuilder()
    body = hlo.computation("fused", fusion=True)
    p = body.parameter("bf16[8,128]")
    body.add("negate", "bf16[8,128]", p)
    entry = hlo.entry()
    x = entry.parameter("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}")
    entry.add("fusion", "bf16[8,128]", x, calls=body, fusion_kind="kLoop", op_name="jit(step)/neg")
    module = hlo.module()

Callees are made before their callers, and the last instruction of a computation is its root. Shapes are
spelt as XLA prints them, tuples in parentheses. Further keywords are fields of the instruction's message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hloscope.hlo import Module, protos
from hloscope.hlo.shape import _PRIMITIVE_TYPES

_TYPES = {name: number for number, (name, _) in _PRIMITIVE_TYPES.items()}
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")

Fields = dict[str, Any]


class Body:
    """A computation under construction."""

    def __init__(self, builder: HloBuilder, proto: protos.Computation) -> None:
        self._builder = builder
        self.proto = proto
        self.id = proto.id

    def parameter(self, shape: str, **fields: Any) -> protos.Instruction:
        """The next parameter."""
        number = sum(i.opcode == "parameter" for i in self.proto.instructions)
        return self.add("parameter", shape, parameter_number=number, **fields)

    def add(
        self,
        opcode: str,
        shape: str,
        *operands: protos.Instruction,
        name: str | None = None,
        op_name: str = "",
        calls: Body | Sequence[Body] = (),
        config: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> protos.Instruction:
        """An instruction; it becomes the root until another one follows."""
        instruction = self.proto.instructions.add(id=self._builder.next_id(), opcode=opcode)
        instruction.name = name or f"{opcode}.{instruction.id}"
        instruction.shape = shape_proto(shape).SerializeToString()
        instruction.operand_ids.extend(o.id for o in operands)
        instruction.metadata.op_name = op_name
        called = [calls] if isinstance(calls, Body) else calls
        instruction.called_computation_ids.extend(c.id for c in called)
        if config is not None:
            instruction.backend_config = json.dumps(config).encode()
        for key, value in fields.items():
            _set(instruction, key, value)
        self.proto.root_id = instruction.id
        return instruction


class HloBuilder:
    """A module under construction."""

    def __init__(self, name: str = "jit_step") -> None:
        self.proto = protos.HloModuleProto(name=name)
        self._last = 0

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def computation(self, name: str, *, fusion: bool = False, thread: str = "") -> Body:
        """A computation that later ones may call."""
        proto = self.proto.computations.add(
            name=name, id=self.next_id(), is_fusion_computation=fusion, execution_thread=thread
        )
        return Body(self, proto)

    def entry(self, name: str = "main") -> Body:
        """The entry computation; make it last."""
        body = self.computation(name)
        self.proto.entry_computation_id = body.id
        return body

    def devices(self, ids: Sequence[int]) -> None:
        """The device assignment: the hardware id of each partition."""
        assignment = self.proto.device_assignment
        assignment.replica_count, assignment.computation_count = 1, len(ids)
        for device in ids:
            assignment.computation_devices.add(replica_device_ids=[device])

    def module(self) -> Module:
        """The finished module."""
        return Module(protos.HloModuleProto.FromString(self.proto.SerializeToString()))


def shape_proto(text: str) -> protos.Shape:
    """A shape's message, from XLA's text for it."""
    text = text.strip()
    if text.startswith("("):
        inner = text[1:-1]
        parts = [shape_proto(part) for part in _split(inner)] if inner else []
        return protos.Shape(element_type=_TYPES["tuple"], tuple_shapes=parts)
    found = _ARRAY.fullmatch(text)
    assert found, f"no shape: {text!r}"
    name, dims, minor, rest = found.groups()
    shape = protos.Shape(element_type=_TYPES.get(name, 99))
    for dim in filter(None, dims.split(",")):
        shape.is_dynamic_dimension.append(dim.startswith("<="))
        shape.dimensions.append(int(dim.removeprefix("<=")))
    order = range(len(shape.dimensions))[::-1] if minor is None else map(int, filter(None, minor.split(",")))
    shape.layout.minor_to_major.extend(order)
    tiles = re.search(r"T((?:\([\d,]*\))+)", rest or "")
    for tile in re.findall(r"\(([\d,]*)\)", tiles.group(1)) if tiles else ():
        shape.layout.tiles.add(dimensions=[int(d) for d in tile.split(",") if d])
    space = re.search(r"S\((\d+)\)", rest or "")
    shape.layout.memory_space = int(space.group(1)) if space else 0
    return shape


def loop(hlo: HloBuilder, body: Body, shape: str, *, trips: int | None) -> Fields:
    """Keywords that make a `while` of a body, over a state of `shape`; without trips they cannot be told."""
    condition = hlo.computation(f"condition_of_{body.proto.name}")
    condition.parameter(shape)
    condition.add("custom-call", "pred[]", custom_call_target="Unknowable")
    known = {} if trips is None else {"known_trip_count": {"n": str(trips)}}
    return {"calls": [body, condition], "config": known}


def group_lists(*groups: Sequence[int]) -> Fields:
    """Replica groups as lists."""
    return {"replica_groups": [protos.ReplicaGroup(replica_ids=g) for g in groups]}


def group_iota(count: int, dims: Sequence[int], perm: Sequence[int] = ()) -> Fields:
    """Replica groups as `[count, size]<=[dims]T(perm)`."""
    iota = protos.IotaReplicaGroupList(
        num_replica_groups=count,
        num_devices_per_group=math.prod(dims) // count,
        iota_reshape_dims=dims,
        iota_transpose_perm=perm,
    )
    return {"iota_collective_device_list": iota}


def group_mesh(mesh: Mapping[str, int], *axes: str, device_ids: Sequence[int] = ()) -> Fields:
    """Replica groups as mesh axes."""
    names = list(mesh)
    made = protos.Mesh(
        axes=[protos.Mesh.Axis(name=n, size=s) for n, s in mesh.items()], device_ids=device_ids
    )
    refs = [protos.AxisRef(mesh_axis_index=names.index(a)) for a in axes]
    return {"mesh_axes_replica_group_list": protos.MeshAxesReplicaGroupList(mesh=made, axes=refs)}


def pairs(*moves: tuple[int, int]) -> Fields:
    """The source-target pairs of a permutation."""
    return {
        "source_target_pairs": [protos.SourceTarget(source=s, target=t).SerializeToString() for s, t in moves]
    }


def _split(text: str) -> list[str]:
    """The parts of a tuple, at commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _set(message: Any, key: str, value: Any) -> None:
    if isinstance(value, list | tuple):
        getattr(message, key).extend(value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, key).CopyFrom(value)
    else:
        setattr(message, key, value)
