"""Realistic optimized modules of any size, for timing: `python benchmarks/generate_module.py 1000000 out.hlo.pb`.

What real modules of large steps are made of, in about their proportions: layers with prefetches into VMEM,
all-gathers on the SparseCore, matmul fusions, a grouped matmul, activations with their recompute and
backward, norms, reduce-scatters and multi-output fusions; half of them unrolled in the entry, half in the
bodies of loops; with metadata and stack frames, a schedule, and a buffer assignment with a heap simulator
trace. Nothing is random: one size is always the same module. A name that ends in .txt is written as text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from hloscope.hlo import Module, protos
from hloscope.hlo.text_print import print_text

ROWS, WIDTH, HIDDEN, GROUPS, DEVICES = 16384, 4096, 1536, 64, 256
BLOCKS_PER_LOOP = 16
TRIPS = 8
# How many buffers are alive besides those that are kept to the end.
LIVE_WINDOW = 12
UNBUFFERED = frozenset({"parameter", "constant", "get-tuple-element"})
CONFIG = json.dumps(
    {"flag_configs": [], "scoped_memory_configs": [{"memory_space": "1", "offset": "0", "size": "0"}]}
).encode()


def shapes(**texts: str) -> dict[str, protos.Shape]:
    """Shapes by name, from XLA's text for them."""
    from hloscope.hlo.text_shape import Shapes

    read = Shapes()
    return {name: read.parse(text) for name, text in texts.items()}


TILED = "T(8,128)(2,1)"
SHAPES = shapes(
    rows=f"bf16[{ROWS},{WIDTH}]{{1,0:{TILED}}}",
    hidden=f"bf16[{ROWS},{HIDDEN}]{{1,0:{TILED}}}",
    weight=f"bf16[{WIDTH},{HIDDEN}]{{1,0:{TILED}}}",
    near=f"bf16[{WIDTH},{HIDDEN}]{{1,0:{TILED}S(1)}}",
    shard=f"bf16[{WIDTH // DEVICES},{HIDDEN}]{{1,0:{TILED}}}",
    experts=f"bf16[{GROUPS},{WIDTH},{HIDDEN}]{{2,1,0:{TILED}}}",
    sizes=f"s32[{GROUPS}]{{0:T(128)}}",
    wide=f"f32[{ROWS},{HIDDEN}]{{1,0:T(8,128)}}",
    scale=f"f32[{ROWS}]{{0:T(1024)}}",
    index="s32[]{:T(128)}",
    flag="pred[]{:T(512)}",
    context="u32[]{:S(2)}",
)


def shape_of(instruction: protos.Instruction) -> protos.Shape:
    """An instruction's shape."""
    return protos.Shape.FromString(instruction.shape)


def tuple_of(*parts: protos.Shape) -> protos.Shape:
    """A tuple's shape."""
    return protos.Shape(element_type=13, tuple_shapes=parts)


class Writer:
    """A module under construction; ids and names count up."""

    def __init__(self) -> None:
        self.proto = protos.HloModuleProto(name="jit_train_step", id=1)
        self.last = 0
        self.count = 0
        frames = self.proto.stack_frame_index
        frames.file_names.extend(["/home/user/model/layers.py", "/home/user/train.py"])
        frames.function_names.extend(["Layer.__call__", "train_step"])
        for line in range(1, 400):
            frames.file_locations.add(file_name_id=1, function_name_id=1, line=line, column=4)
            frames.stack_frames.add(file_location_id=line, parent_frame_id=max(0, line - 12))

    def id(self) -> int:
        """The next id."""
        self.last += 1
        return self.last

    def computation(self, name: str, *, fusion: bool = False, thread: str = "") -> Body:
        """A computation; callees are made before their callers."""
        number = self.id()
        proto = protos.Computation(
            name=f"{name}.{number}",
            id=number,
            is_fusion_computation=fusion,
            execution_thread=thread or "main",
        )
        return Body(self, proto)

    def place(self, body: Body) -> None:
        """Put a finished computation into the module, before what calls it."""
        if not body.is_placed:
            self.proto.computations.append(body.proto)
            body.is_placed = True


class Body:
    """A computation under construction."""

    def __init__(self, writer: Writer, proto: protos.Computation) -> None:
        self.writer = writer
        self.proto = proto
        self.parameters = 0
        self.is_placed = False

    def parameter(self, shape: protos.Shape) -> protos.Instruction:
        """The next parameter."""
        made = self.add("parameter", shape, parameter_number=self.parameters)
        self.parameters += 1
        return made

    def add(
        self,
        opcode: str,
        shape: protos.Shape,
        *operands: protos.Instruction,
        calls: Sequence[Body] = (),
        scope: str = "",
        name: str = "",
        **fields: object,
    ) -> protos.Instruction:
        """An instruction; the last one is the root."""
        writer, number = self.writer, self.writer.id()
        for callee in calls:
            writer.place(callee)
        writer.count += 1
        made = self.proto.instructions.add(
            id=number, name=f"{name or opcode}.{number}", opcode=opcode, shape=shape.SerializeToString(),
            operand_ids=[o.id for o in operands], called_computation_ids=[c.proto.id for c in calls], **fields,
        )  # fmt: skip
        if scope:
            made.metadata.op_name = f"jit(train_step)/{scope}/{opcode}"
            made.metadata.stack_frame_id = 1 + number % 399
        self.proto.root_id = number
        return made

    def element(self, value: protos.Instruction, index: int) -> protos.Instruction:
        """An element of a tuple."""
        part = shape_of(value).tuple_shapes[index]
        return self.add("get-tuple-element", part, value, tuple_index=index)

    def fusion(
        self, kind: str, body: Body, shape: protos.Shape, *operands: protos.Instruction, scope: str
    ) -> protos.Instruction:
        """A fusion of a body."""
        return self.add(
            "fusion", shape, *operands, calls=[body], scope=scope, fusion_kind=kind, backend_config=CONFIG
        )


def reducer(writer: Writer) -> Body:
    """Addition of two numbers."""
    scalar = shapes(x="f32[]{:T(128)}")["x"]
    body = writer.computation("add")
    body.add("add", scalar, body.parameter(scalar), body.parameter(scalar))
    return body


def matmul(writer: Writer, scope: str) -> Body:
    """Rows times a weight, its operands brought into place by nested fusions."""
    inner = writer.computation("bitcast_fusion", fusion=True)
    inner.add("bitcast", SHAPES["weight"], inner.parameter(SHAPES["near"]))
    body = writer.computation("fused_matmul", fusion=True)
    rows, weight = body.parameter(SHAPES["rows"]), body.parameter(SHAPES["near"])
    placed = body.fusion("kLoop", inner, SHAPES["weight"], weight, scope=scope)
    product = body.add(
        "dot", SHAPES["wide"], rows, placed, scope=scope,
        dot_dimension_numbers=protos.DotDimensionNumbers(
            lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]
        ),
    )  # fmt: skip
    body.add("convert", SHAPES["hidden"], product, scope=scope)
    return body


def activation(writer: Writer, scope: str, *, outputs: int) -> Body:
    """silu(gate) * up in float; the backward has two outputs."""
    body = writer.computation("fused_activation", fusion=True)
    gate, up = body.parameter(SHAPES["hidden"]), body.parameter(SHAPES["hidden"])
    wide = SHAPES["wide"]
    x = body.add("convert", wide, gate, scope=scope)
    e = body.add("exponential", wide, body.add("negate", wide, x, scope=scope), scope=scope)
    one = body.add("constant", shapes(x="f32[]{:T(128)}")["x"])
    one.literal.shape.CopyFrom(shape_of(one))
    one.literal.f32s.append(1.0)
    ones = body.add("broadcast", wide, one, scope=scope)
    s = body.add("divide", wide, ones, body.add("add", wide, e, ones, scope=scope), scope=scope)
    y = body.add("multiply", wide, x, s, scope=scope)
    z = body.add("multiply", wide, y, body.add("convert", wide, up, scope=scope), scope=scope)
    parts = [body.add("convert", SHAPES["hidden"], v, scope=scope) for v in (z, y)[:outputs]]
    if outputs > 1:
        body.add("tuple", tuple_of(*map(shape_of, parts)), *parts)
    return body


def norm(writer: Writer, add: Body, scope: str) -> Body:
    """Mean of squares over columns."""
    body = writer.computation("fused_norm", fusion=True)
    x = body.add("convert", SHAPES["wide"], body.parameter(SHAPES["hidden"]), scope=scope)
    square = body.add("multiply", SHAPES["wide"], x, x, scope=scope)
    zero = body.add("constant", shapes(x="f32[]{:T(128)}")["x"])
    zero.literal.shape.CopyFrom(shape_of(zero))
    zero.literal.f32s.append(0.0)
    total = body.add("reduce", SHAPES["scale"], square, zero, calls=[add], scope=scope, dimensions=[1])
    body.add("rsqrt", SHAPES["scale"], total, scope=scope)
    return body


def scatter(writer: Writer, add: Body, scope: str) -> Body:
    """A reduce-scatter as the compiler spells it: all-reduce, then a slice."""
    body = writer.computation("all-reduce-scatter", fusion=True)
    whole = body.parameter(SHAPES["weight"])
    groups = protos.IotaReplicaGroupList(
        num_replica_groups=1, num_devices_per_group=DEVICES, iota_reshape_dims=[DEVICES]
    )
    summed = body.add(
        "all-reduce", SHAPES["weight"], whole, calls=[add], scope=scope, channel_id=writer.id(),
        use_global_device_ids=True, iota_collective_device_list=groups,
    )  # fmt: skip
    place = body.add("constant", SHAPES["index"])
    place.literal.shape.CopyFrom(shape_of(place))
    place.literal.s32s.append(0)
    sizes = [WIDTH // DEVICES, HIDDEN]
    body.add("dynamic-slice", SHAPES["shard"], summed, place, place, dynamic_slice_sizes=sizes, scope=scope)
    return body


def gathered(body: Body, shard: protos.Instruction, scope: str) -> protos.Instruction:
    """An all-gather on the SparseCore, between a start and its done."""
    inner = body.writer.computation("async_all_gather", thread="sparsecore")
    groups = protos.IotaReplicaGroupList(
        num_replica_groups=1, num_devices_per_group=DEVICES, iota_reshape_dims=[DEVICES]
    )
    inner.add(
        "all-gather", SHAPES["weight"], inner.parameter(SHAPES["shard"]), scope=scope, dimensions=[0],
        channel_id=body.writer.id(), use_global_device_ids=True, iota_collective_device_list=groups,
    )  # fmt: skip
    state = tuple_of(tuple_of(SHAPES["shard"]), SHAPES["weight"], SHAPES["context"])
    start = body.add(
        "async-start", state, shard, calls=[inner], scope=scope, async_execution_thread="sparsecore",
        backend_config=CONFIG,
    )  # fmt: skip
    return body.add("async-done", SHAPES["weight"], start, scope=scope)


def block(body: Body, add: Body, rows: protos.Instruction, given: Given, number: int) -> protos.Instruction:
    """One layer, forward, recomputed and backward; the rows that it hands on."""
    writer, layer = body.writer, f"layers_{number % 61}"
    forward, backward = f"jvp({layer})", f"transpose(jvp({layer}))"
    again = f"{backward}/rematted_computation"
    whole = gathered(body, given.shard, forward)
    state = tuple_of(SHAPES["near"], SHAPES["weight"], SHAPES["context"])
    near = body.add("copy-done", SHAPES["near"], body.add("copy-start", state, whole))
    x = rows
    for scope in (forward, again):
        gate = body.fusion(
            "kOutput", matmul(writer, scope), SHAPES["hidden"], rows, near, scope=f"{scope}/mlp"
        )
        scale = body.fusion(
            "kInput", norm(writer, add, scope), SHAPES["scale"], gate, scope=f"{scope}/rms_norm"
        )
        x = body.fusion(
            "kLoop", activation(writer, scope, outputs=1), SHAPES["hidden"], gate, gate, scope=f"{scope}/silu"
        )
        body.add("add", SHAPES["scale"], scale, scale, scope=scope)
    kernel = body.add(
        "custom-call", SHAPES["hidden"], rows, given.experts, given.sizes, scope=f"{forward}/gmm", name="gmm",
        custom_call_target="tpu_custom_call", backend_config=CONFIG,
    )  # fmt: skip
    both = body.fusion(
        "kLoop", activation(writer, backward, outputs=2), tuple_of(SHAPES["hidden"], SHAPES["hidden"]),
        x, kernel, scope=f"{backward}/silu",
    )  # fmt: skip
    first, second = body.element(both, 0), body.element(both, 1)
    product = body.add(
        "dot", SHAPES["weight"], rows, first, scope=backward,
        dot_dimension_numbers=protos.DotDimensionNumbers(
            lhs_contracting_dimensions=[0], rhs_contracting_dimensions=[0]
        ),
    )  # fmt: skip
    body.fusion("kCustom", scatter(writer, add, backward), SHAPES["shard"], product, scope=backward)
    return body.add(
        "dot", SHAPES["rows"], second, near, scope=f"{backward}/mlp",
        dot_dimension_numbers=protos.DotDimensionNumbers(
            lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[1]
        ),
    )  # fmt: skip


class Given:
    """What every layer reads besides its rows."""

    def __init__(
        self, shard: protos.Instruction, experts: protos.Instruction, sizes: protos.Instruction
    ) -> None:
        self.shard, self.experts, self.sizes = shard, experts, sizes


STATE = tuple_of(*(SHAPES[name] for name in ("index", "rows", "shard", "experts", "sizes")))


def integer(body: Body, value: int) -> protos.Instruction:
    """An integer constant."""
    made = body.add("constant", SHAPES["index"])
    made.literal.shape.CopyFrom(shape_of(made))
    made.literal.s32s.append(value)
    return made


def scan(writer: Writer, add: Body, number: int) -> list[Body]:
    """The body and the condition of a loop over layers."""
    body = writer.computation("while_body")
    state = body.parameter(STATE)
    index, rows, shard, experts, sizes = (body.element(state, i) for i in range(5))
    given = Given(shard, experts, sizes)
    for i in range(BLOCKS_PER_LOOP):
        rows = block(body, add, rows, given, number + i)
    following = body.add("add", SHAPES["index"], index, integer(body, 1))
    body.add("tuple", STATE, following, rows, shard, experts, sizes)
    condition = writer.computation("while_condition")
    count = condition.element(condition.parameter(STATE), 0)
    condition.add("compare", SHAPES["flag"], count, integer(condition, TRIPS), comparison_direction="LT")
    return [body, condition]


def entry(writer: Writer, add: Body, instructions: int) -> Body:
    """The entry: loops and unrolled layers in turn, until the module is as large as it should be."""
    made: list[list[Body]] = []
    body = Body(writer, protos.Computation(name="main", id=writer.id(), execution_thread="main"))
    rows, shard = body.parameter(SHAPES["rows"]), body.parameter(SHAPES["shard"])
    given = Given(shard, body.parameter(SHAPES["experts"]), body.parameter(SHAPES["sizes"]))
    number = 0
    while writer.count < instructions:
        made.append(scan(writer, add, number))
        state = body.add("tuple", STATE, integer(body, 0), rows, shard, given.experts, given.sizes)
        rows = body.element(body.add("while", STATE, state, calls=made[-1], scope="jvp(layers)"), 1)
        for i in range(BLOCKS_PER_LOOP):
            rows = block(body, add, rows, given, number + i)
            if writer.count >= instructions:
                break
        number += BLOCKS_PER_LOOP
    body.add("tuple", tuple_of(SHAPES["rows"]), rows)
    return body


def generate(instructions: int, *, alive: float = 0.1) -> protos.HloProto:
    """A module of about that many instructions (a few hundred more at most). `alive` is the share of buffers
    that live to the end of the step, as saved activations do."""
    writer = Writer()
    add = reducer(writer)
    main = entry(writer, add, instructions)
    proto = writer.proto
    writer.place(main)
    proto.entry_computation_id, proto.entry_computation_name = main.proto.id, main.proto.name
    proto.device_assignment.replica_count, proto.device_assignment.computation_count = 1, DEVICES
    for computation in proto.computations:
        if not computation.is_fusion_computation:
            ids = proto.schedule.sequences[computation.id].instruction_ids
            ids.extend(i.id for i in computation.instructions)
    whole = protos.HloProto(hlo_module=proto)
    assign(Module(proto), whole.buffer_assignment, alive)
    return whole


def assign(module: Module, assignment: protos.BufferAssignment, alive: float) -> None:
    """A buffer for every array that is computed in HBM, in one arena, freed some instructions later."""
    from hloscope.analysis.memory_order import flat_order

    arena = protos.BufferAllocation(index=1, color=0)
    trace = assignment.heap_simulator_traces.add(buffer_allocation_index=1)
    waiting: list[tuple[int, int, int]] = []
    free: dict[int, list[int]] = {}  # offsets, by size
    kept = 0.0
    number = 0
    for instruction in flat_order(module).instructions:
        shape = instruction.shape
        if shape.is_tuple or shape.memory_space or instruction.opcode in UNBUFFERED:
            continue
        number += 1
        size = shape.padded_bytes
        assignment.logical_buffers.add(id=number, size=size).defined_at.instruction_id = instruction.id
        offset = free[size].pop() if free.get(size) else arena.size
        arena.size = max(arena.size, offset + size)
        arena.assigned.add(logical_buffer_id=number, offset=offset, size=size)
        trace.events.add(kind=0, buffer_id=number)
        kept += alive
        if kept >= 1:
            kept -= 1
            continue
        waiting.append((number, size, offset))
        if len(waiting) > LIVE_WINDOW:
            gone, size, offset = waiting.pop(0)
            trace.events.add(kind=1, buffer_id=gone)
            free.setdefault(size, []).append(offset)
    for parameter in module.entry.parameters:
        number += 1
        size = parameter.shape.padded_bytes
        assignment.logical_buffers.add(id=number, size=size).defined_at.instruction_id = parameter.id
        held = assignment.buffer_allocations.add(
            index=len(assignment.buffer_allocations) + 2, size=size, is_entry_computation_parameter=True,
            parameter_number=parameter.proto.parameter_number,
        )  # fmt: skip
        held.assigned.add(logical_buffer_id=number, size=size)
    assignment.buffer_allocations.append(arena)


def write(path: Path, instructions: int, *, alive: float = 0.1) -> None:
    """Write a module as a proto, or as text where the name ends in .txt."""
    whole = generate(instructions, alive=alive)
    if path.suffix != ".txt":
        path.write_bytes(whole.SerializeToString())
        return
    with path.open("w", encoding="utf-8") as file:
        file.writelines(print_text(Module(whole.hlo_module)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("instructions", type=int)
    parser.add_argument("file", type=Path, help="*.hlo.pb, or *.txt for text")
    parser.add_argument("--alive", type=float, default=0.1, help="share of the buffers that are never freed")
    given = parser.parse_args()
    write(given.file, given.instructions, alive=given.alive)


if __name__ == "__main__":
    main()
