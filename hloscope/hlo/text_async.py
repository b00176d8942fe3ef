"""`X-start`, `X-update` and `X-done` of an X that has no asynchronous form of its own.

Newer printers write `reduce-scatter-start(...)` for an `async-start` that calls a computation with nothing
but a reduce-scatter in it. That computation is made here, so that both spellings give one module.
"""

from __future__ import annotations

from typing import Protocol

from hloscope.hlo import protos
from hloscope.hlo.text_names import Names
from hloscope.hlo.text_scan import MalformedError
from hloscope.hlo.text_shape import Shapes

# These are opcodes; every other `X-start` is short for an `async-start`.
_NATIVE = frozenset({"all-gather", "all-reduce", "collective-permute", "copy", "async", "send", "recv"})
# These stay with the start; the work within has the rest, and both have the provenance.
_OF_START = ("backend_config", "frontend_attributes", "metadata", "sharding")


class Maker(Protocol):
    """What making a computation needs."""

    module: protos.HloModuleProto
    names: Names
    shapes: Shapes

    def next_id(self) -> int:
        """A new instruction id."""
        ...


def unwrap(maker: Maker, proto: protos.Instruction) -> None:
    """Turn the short spelling into the long one; does nothing to an instruction that has it already.

    Raises MalformedError where the start's shape is not that of an asynchronous operation.
    """
    opcode, _, part = proto.opcode.rpartition("-")
    if opcode in _NATIVE:
        return
    if part != "start":
        proto.opcode = f"async-{part}"
        return
    shapes = maker.shapes.of(proto.shape).tuple_shapes
    if len(shapes) < 2:
        raise MalformedError(f"{proto.opcode} needs a shape ((operands), result, ...)")
    work = protos.Instruction()
    work.CopyFrom(proto)
    body = _computation(maker, proto)
    for number, shape in enumerate(shapes[0].tuple_shapes):
        parameter = body.instructions.add(id=maker.next_id(), opcode="parameter", parameter_number=number)
        parameter.name = maker.names.instruction(f"{proto.name}.param_{number}")
        parameter.shape = shape.SerializeToString()
    work.opcode, work.id = opcode, maker.next_id()
    work.name = maker.names.instruction(f"{proto.name}.{opcode}")
    work.shape = shapes[1].SerializeToString()
    for field in ("operand_ids", "control_predecessor_ids", "async_execution_thread"):
        work.ClearField(field)
    work.operand_ids.extend(p.id for p in body.instructions)
    body.instructions.append(work)
    body.root_id = work.id
    _keep_start(proto, body.id)


def _computation(maker: Maker, proto: protos.Instruction) -> protos.Computation:
    name = maker.names.unused_computation(f"{proto.name}.async")
    number = maker.names.define_computation(name)
    assert number is not None
    return maker.module.computations.add(name=name, id=number, execution_thread=proto.async_execution_thread)


def _keep_start(proto: protos.Instruction, body: int) -> None:
    start = protos.Instruction(
        name=proto.name, id=proto.id, opcode="async-start", called_computation_ids=[body]
    )
    start.shape = proto.shape
    start.operand_ids.extend(proto.operand_ids)
    start.control_predecessor_ids.extend(proto.control_predecessor_ids)
    start.async_execution_thread = proto.async_execution_thread
    for field in _OF_START:
        if field == "backend_config":
            start.backend_config = proto.backend_config
        elif proto.HasField(field):
            getattr(start, field).CopyFrom(getattr(proto, field))
    proto.CopyFrom(start)
