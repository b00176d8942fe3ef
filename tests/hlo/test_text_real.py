"""The text and the proto of one real module give one model: everything that both of them hold is the same.

What text does not hold, and so is left out here: instruction ids; the names, op names and duplicates of
get-tuple-element (text writes `%x#0`); the elements of large constants; the comparison type that older
protos spell out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.census import Family
from hloscope.analysis.collectives import Collective
from hloscope.engine import run_rules
from hloscope.hlo import Computation, HloFile, Instruction, Module, SourceFrame, read_hlo
from hloscope.rule import Finding

NAMES = ("oom", "dense", "qwen3_30b", "deepseek", "qwen35_397b")

# Compared otherwise, or (the last three) told above.
ELSEWHERE = {
    "id", "shape", "operand_ids", "called_computation_ids", "control_predecessor_ids", "backend_config",
    "replica_groups", "collective_device_list", "iota_collective_device_list", "mesh_axes_replica_group_list",
    "metadata", "literal", "comparison_type",
}  # fmt: skip

Pair = tuple[Module, Module]


@cache
def _text(path: Path) -> HloFile:
    return read_hlo(path)


def text_beside(proto: Path) -> Path:
    """The text of the same module; the largest one is read in place where a checkout has it beside it."""
    if proto.name != "qwen35_397b.hlo.pb.gz":
        return proto.with_name(proto.name.replace(".hlo.pb", ".txt"))
    folder = "qwen35_397b_tpu7x256_fsdp32_ep8_ring_ragged"
    text = Path(__file__).parents[3] / "shared" / "data" / "maxtext" / folder / "after_optimizations.txt.gz"
    if not text.exists():
        pytest.skip("the text of the largest module is not part of the repository")
    return text


@pytest.fixture(params=NAMES)
def pair(
    request: pytest.FixtureRequest, shared_dump: Callable[[str], HloFile], dump_file: Callable[[str], Path]
) -> Pair:
    """The module as its text tells it, and as its proto does."""
    return _text(text_beside(dump_file(request.param))).module, shared_dump(request.param).module


def spelled(instruction: Instruction) -> str:
    if instruction.opcode == "get-tuple-element":
        return f"{spelled(instruction.operands[0])}#{instruction.tuple_index}"
    return instruction.name


def described(instruction: Instruction) -> dict[str, Any]:
    proto, groups = instruction.proto, instruction.replica_groups
    plain = {f.name: getattr(proto, f.name) for f in proto.DESCRIPTOR.fields if f.name not in ELSEWHERE}
    by_id = instruction.computation.by_id
    return {
        **{name: value if isinstance(value, int | str) else str(value) for name, value in plain.items()},
        "shape": str(instruction.shape),
        "padded_bytes": instruction.shape.padded_bytes,
        "op_name": instruction.op_name,
        "frames": instruction.frames,
        "operands": [spelled(o) for o in instruction.operands],
        "called": [c.name for c in instruction.called_computations],
        "predecessors": sorted(spelled(by_id[i]) for i in proto.control_predecessor_ids),
        "groups": groups and groups.text,
        "backend_config": instruction.backend_config or proto.backend_config,
        "literal": numbers(instruction),
    }


def numbers(instruction: Instruction) -> object:
    """The elements of a scalar constant."""
    literal = instruction.proto.literal
    if instruction.opcode != "constant" or instruction.shape.dimensions:
        return None
    return [(f.name, str(v)) for f, v in literal.ListFields() if f.name != "shape"]


def work(computation: Computation) -> list[Instruction]:
    return [i for i in computation.schedule if i.opcode != "get-tuple-element"]


def test_every_computation_is_the_same(pair: Pair) -> None:
    text, proto = pair
    others = {c.name: c for c in proto.computations}
    assert {c.name for c in text.computations} == set(others)
    for one in text.computations:
        other = others[one.name]
        assert [i.name for i in work(one)] == [i.name for i in work(other)]
        assert spelled(one.root) == spelled(other.root)
        assert one.is_fusion == other.is_fusion
        assert one.execution_thread == other.execution_thread
        assert [p.name for p in one.parameters] == [p.name for p in other.parameters]
        assert text.executions(one) == proto.executions(other)
        elements = [{spelled(i) for i in c if i.opcode == "get-tuple-element"} for c in (one, other)]
        assert elements[0] == elements[1]
    assert {c.name for c in text.control_computations} == {c.name for c in proto.control_computations}


def test_every_instruction_is_the_same(pair: Pair) -> None:
    text, proto = pair
    for computation in text.computations:
        for instruction in work(computation):
            other = proto.find(instruction.name)
            assert other is not None
            assert described(instruction) == described(other)
            if instruction.opcode == "while":
                assert text.trip_counts[instruction.id] == proto.trip_counts[other.id]


def test_the_module_is_the_same(pair: Pair) -> None:
    text, proto = pair
    assert (text.name, text.entry.name, text.is_scheduled) == (
        proto.name,
        proto.entry.name,
        proto.is_scheduled,
    )
    assert text.num_partitions == proto.num_partitions
    assert text.instruction_count == proto.instruction_count
    # As text: a real message has fields that this project does not declare, and they would count.
    for field in ("input_output_alias", "buffer_donor", "frontend_attributes", "stack_frame_index"):
        assert str(getattr(text.proto, field)) == str(getattr(proto.proto, field)), field
    shapes = [module.proto.host_program_shape for module in pair]
    assert [str(p) for p in shapes[0].parameters] == [str(p) for p in shapes[1].parameters]
    assert str(shapes[0].result) == str(shapes[1].result)


def test_large_constants_are_left_out_rather_than_guessed(pair: Pair) -> None:
    text, proto = pair
    for instruction in text.instructions:
        literal = instruction.proto.literal
        if instruction.opcode == "constant" and instruction.proto.HasField("literal"):
            other = proto.find(instruction.name)
            assert other is not None
            for name in ("s32s", "u32s", "f32s", "preds", "bf16s", "s64s", "u64s"):
                assert str(getattr(literal, name)) == str(getattr(other.proto.literal, name)), (
                    instruction.name
                )


def _provenance(family: Family) -> tuple[str, SourceFrame | None] | None:
    """None where it is borrowed of a neighbour: which comes first depends on elements of tuples."""
    return (family.op_name, family.source) if family.instructions[0].op_name else None


def _names(alike: Family | Collective | Finding) -> tuple[str, ...]:
    return tuple(sorted(map(spelled, alike.instructions)))


def test_the_census_is_the_same(pair: Pair) -> None:
    """Copies are left out: those without an op name borrow one of a neighbour, which may be `%x#0`, so that even
    their phase may differ."""
    lines = [
        Counter(
            (
                (f.family, f.kind, f.phase, f.loop, f.shape, f.count, f.executions, f.bytes, f.thread),
                _provenance(f),
                _names(f),
            )
            for f in Analyses(module).census.families
            if not f.kind.startswith("copy")
        )
        for module in pair
    ]
    assert lines[0] == lines[1]
    counts = [(a.census.fusion_count, a.census.top_level_fusion_count) for a in map(Analyses, pair)]
    assert counts[0] == counts[1]


def test_the_collectives_are_the_same(pair: Pair) -> None:
    found = [
        Counter(
            (
                c.opcode,
                c.form,
                c.shape,
                c.operand_shape,
                c.dimension,
                c.mesh_axes,
                c.count,
                c.bytes,
                c.offload,
                c.op_name,
                c.source,
                _names(c),
            )
            for c in Analyses(module).collectives.collectives
        )
        for module in pair
    ]
    assert found[0] == found[1]
    assert Analyses(pair[0]).collectives.mesh == Analyses(pair[1]).collectives.mesh


def test_the_findings_are_the_same(pair: Pair) -> None:
    found = [
        Counter(
            (f.code, f.title, f.fingerprint, f.severity, f.bytes, f.saved_bytes, f.source, _names(f))
            for f in run_rules(Analyses(module))
        )
        for module in pair
    ]
    assert found[0] == found[1]


def test_ragged_buffers_are_the_same(pair: Pair) -> None:
    buffers = [
        [(b.rows, b.groups, len(b.matmuls), len(b.work), b.valid_fraction) for b in Analyses(m).rows.buffers]
        for m in pair
    ]
    assert buffers[0] == buffers[1]


def test_a_text_file_has_no_buffer_assignment(dump_file: Callable[[str], Path]) -> None:
    file = _text(text_beside(dump_file("oom")))
    assert file.buffer_assignment is None
    assert Analyses.of_file(file).memory.argument_bytes == 687882240
