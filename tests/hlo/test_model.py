"""The HLO model on real modules, held against jaxlib's own reading of the same bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hloscope.hlo import Module, async_operations, read_hlo

# Runs in a process of its own: jaxlib aborts on modules that it does not like.
PRINT_MODULE = """
import sys
from jaxlib import _hlo
from hloscope.hlo import read_hlo
proto = read_hlo(sys.argv[1]).module.proto
print(_hlo.HloModule.from_serialized_hlo_module_proto(proto.SerializeToString()).to_string())
"""

INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (.*)")
INDEX = re.compile(r"/\*index=\d+\*/")


def jaxlib_lines(path: Path) -> dict[str, str]:
    """The instructions of a module as jaxlib prints them, by name."""
    run = subprocess.run(
        [sys.executable, "-c", PRINT_MODULE, str(path)], capture_output=True, text=True, check=False
    )
    if "RET_CHECK" in run.stderr:
        pytest.skip("this jaxlib does not read modules of the newer compiler")
    assert run.returncode == 0, run.stderr[-2000:]
    found = (INSTRUCTION.match(line) for line in run.stdout.splitlines())
    return {m[1]: INDEX.sub("", m[2]) for m in found if m}


@pytest.mark.parametrize("name", ["dense", "oom", "deepseek"])
def test_shapes_opcodes_and_operands_agree_with_jaxlib(name, dump_file):
    module = read_hlo(dump_file(name)).module
    lines = jaxlib_lines(dump_file(name))
    compared = 0
    for instruction in module.instructions:
        line = lines.get(instruction.name)
        # jaxlib prints asynchronous calls in a short form of its own, without their computations.
        if line is None or instruction.opcode.startswith("async-"):
            continue
        head = f"{instruction.shape} {instruction.opcode}("
        assert line.startswith(head), instruction.name
        if instruction.opcode not in ("constant", "parameter"):
            printed = re.findall(r"%([\w.\-]+)", line[len(head) :].split(")")[0])
            assert printed == [o.name for o in instruction.operands], instruction.name
        compared += 1
    assert compared > 0.9 * module.instruction_count


@pytest.mark.parametrize(
    ("name", "instructions", "computations"),
    [("dense", 3673, 305), ("qwen3_30b", 6572, 586), ("deepseek", 18743, 2208), ("qwen35_397b", 53434, 6359)],
)
def test_module_is_read_whole(name, instructions, computations, shared_dump):
    module = shared_dump(name).module
    assert module.instruction_count == instructions
    assert len(module.computations) == computations
    assert module.is_scheduled


@pytest.mark.parametrize(
    ("name", "trips"),
    [
        ("dense", {2: 2}),
        ("qwen3_30b", {4: 13}),
        ("deepseek", {58: 2, 3: 2, 11: 11}),
        ("qwen35_397b", {15: 2, 9: 48, 64: 9}),
    ],
)
def test_every_trip_count_of_the_real_modules_is_derived(name, trips, shared_dump):
    counts = list(shared_dump(name).module.trip_counts.values())
    assert {n: counts.count(n) for n in set(counts)} == trips


def test_executions_multiply_along_nested_loops(shared_dump):
    module = shared_dump("deepseek").module
    inner = [w for w in module.instructions if w.opcode == "while" and module.trip_counts[w.id] == 11]
    assert {module.executions(w.called_computations[0]) for w in inner} == {58 * 11}
    assert {module.executions(w.called_computations[1]) for w in inner} == {58 * 12}


@pytest.mark.parametrize("name", ["dense", "qwen3_30b", "deepseek", "oom", "qwen35_397b"])
def test_padded_bytes_are_the_compilers_buffer_sizes(name, shared_dump):
    file = shared_dump(name)
    by_id = {i.id: i for i in file.module.instructions}
    compared = 0
    for buffer in file.buffer_assignment.logical_buffers:
        where = buffer.defined_at
        shape = by_id[where.instruction_id].shape.at(tuple(where.shape_index))
        # The compiler rounds untiled scalars and flags up to its smallest allocation.
        if shape.is_tuple or shape.elements <= 1:
            continue
        assert shape.padded_bytes == buffer.size, str(shape)
        compared += 1
    assert compared > len(file.buffer_assignment.logical_buffers) / 4


def test_asynchronous_operations_have_work_and_an_end(shared_dump):
    module = shared_dump("deepseek").module
    found: dict[str, int] = {}
    for computation in module.control_computations:
        for operation in async_operations(computation):
            assert operation.done is not None, operation.start.name
            assert operation.operands, operation.start.name
            found[operation.opcode] = found.get(operation.opcode, 0) + 1
    assert found["all-gather"] == 49
    assert found["collective-permute"] == 256
    assert found["reduce-scatter"] == 6
    assert not any(opcode.startswith("async") for opcode in found)


def test_the_three_spellings_of_replica_groups_name_the_same_devices(shared_dump):
    groups = [i.replica_groups for i in shared_dump("deepseek").module.instructions]
    by_text = {g.text: g for g in groups if g is not None}
    iota = by_text["[4,128]<=[128,4]T(1,0)"]
    mesh = next(g for t, g in by_text.items() if t.endswith("{'fsdp'}"))
    assert mesh.axes == ("fsdp",)
    assert mesh.group_size == 128
    assert mesh.groups.tolist() == iota.groups.tolist()
    lists = next(g for t, g in by_text.items() if t.startswith("{"))
    assert lists.groups.shape == (lists.group_count, lists.group_size)
    for known in (iota, mesh):  # equal ones are decoded once
        assert len({id(g) for g in groups if g is not None and g.text == known.text}) == 1


def test_users_parts_and_nested_fusions_are_those_of_the_operands_leaves_and_callers(shared_dump):
    module = shared_dump("deepseek").module
    nested = 0
    for computation in module.computations:
        users: dict[str, list[str]] = {}
        for user in computation:
            for operand in dict.fromkeys(user.operands):
                users.setdefault(operand.name, []).append(user.name)
        for instruction in computation:
            assert [u.name for u in instruction.users] == users.get(instruction.name, [])
            assert instruction.shape.parts == tuple(part for _, part in instruction.shape.leaves())
            assert instruction.shape.spaces == {part.memory_space for part in instruction.shape.parts}
        fusions = [i for i in computation if i.opcode == "fusion"]
        bodies = [body for fusion in fusions for body in fusion.called_computations]
        assert list(module.nested_fusions(computation.id)) == bodies
        nested += len(bodies)
    assert nested == module.opcode_counts["fusion"]


def test_elements_of_tuples_share_the_shapes_of_the_module(shared_dump):
    module = shared_dump("deepseek").module
    elements = [
        i for i in module.instructions if i.opcode == "get-tuple-element" and i.operands[0].shape.is_tuple
    ]
    assert elements
    for element in elements:
        assert element.operands[0].shape.tuple_shapes[element.tuple_index] is element.shape


def test_source_frames_lead_to_the_users_line(shared_dump):
    fusion = shared_dump("deepseek").module.find("fusion.1584.kernel_args_2_")
    assert fusion.source.file.endswith("maxtext/layers/moe.py")
    assert fusion.source.line == 1469
    assert len(fusion.frames) > 3


def test_the_graph_holds_every_edge(shared_dump):
    module = shared_dump("dense").module
    graph = module.graph()
    assert graph.number_of_nodes() == sum(1 for _ in module.instructions)
    fusion = next(i for i in module.entry.instructions if i.opcode == "fusion")
    assert {o.name for o in fusion.operands} <= set(graph.predecessors(fusion.name))
    assert graph.edges[fusion.name, fusion.called_computations[0].root.name]["kind"] == "calls"


def test_a_module_reads_the_same_with_and_without_its_buffer_assignment(tmp_path, shared_dump):
    whole = shared_dump("dense").module
    path = tmp_path / "module.pb"
    path.write_bytes(whole.proto.SerializeToString())
    bare = read_hlo(path)
    assert bare.buffer_assignment is None
    assert [repr(i) for i in bare.module.instructions] == [repr(i) for i in whole.instructions]


def test_instructions_cannot_be_changed(shared_dump):
    module: Module = shared_dump("dense").module
    with pytest.raises(AttributeError):
        module.entry.root.name = "other"
