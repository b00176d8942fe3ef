"""Files that are not what they should be: one clear line each, never a traceback of another kind."""

from __future__ import annotations

import gzip
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.errors import UserError
from hloscope.hlo import Module, protos, read_hlo


@pytest.fixture(scope="session")
def small_bytes(dump_file) -> bytes:
    return gzip.decompress(dump_file("oom").read_bytes())


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*no\.hlo\.pb: No such file or directory"):
        read_hlo(tmp_path / "no.hlo.pb")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"HloModule jit_step, is_scheduled=true\n", "has no computations: the file is truncated"),
        (gzip.compress(b"HloModule"), "is no HLO module"),
        (b"\x1f\x8bnot really gzip", "is a damaged gzip file"),
        (gzip.compress(b"\n" * 1000)[:-12], "is a damaged gzip file|ends too early"),
        (gzip.compress(b""), "is no HLO module|is empty"),
    ],
)
def test_what_is_no_module_is_said_to_be_none(data, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_hlo(write(tmp_path / "x.hlo.pb", data))


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_hlo(tmp_path)


def test_a_truncated_module(tmp_path, small_bytes):
    with pytest.raises(UserError, match=r"x\.hlo\.pb"):
        read_hlo(write(tmp_path / "x.hlo.pb", small_bytes[: len(small_bytes) // 2]))


def module_of(*computations: protos.Computation, entry: int = 1) -> protos.HloModuleProto:
    return protos.HloModuleProto(name="m", computations=computations, entry_computation_id=entry)


def constant(name: str, number: int, **fields: object) -> protos.Instruction:
    return protos.Instruction(name=name, opcode="constant", id=number, **fields)


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (module_of(), "no entry computation"),
        (module_of(protos.Computation(name="c", id=2)), "no entry computation"),
        (module_of(protos.Computation(name="c", id=1, root_id=9)), "no root"),
        (
            module_of(
                protos.Computation(
                    name="c", id=1, root_id=1, instructions=[constant("a", 1, operand_ids=[7])]
                )
            ),
            "%a has an operand that does not come before it",
        ),
        (
            module_of(
                protos.Computation(
                    name="c", id=1, root_id=1, instructions=[constant("a", 1, called_computation_ids=[1])]
                )
            ),
            "%a calls a computation that does not come before it",
        ),
        (
            module_of(
                protos.Computation(
                    name="c", id=1, root_id=1, instructions=[constant("a", 1), constant("b", 1)]
                )
            ),
            "two instructions with one id",
        ),
        (
            module_of(
                protos.Computation(name="c", id=1, root_id=1, instructions=[constant("a", 1, shape=b"\xff")])
            ),
            "a shape is damaged",
        ),
    ],
)
def test_references_that_point_nowhere_are_refused(proto, message):
    with pytest.raises(UserError, match=message):
        Module(proto)


def test_equal_shapes_are_one_object_however_they_are_written():
    plain = protos.Shape(element_type=11, dimensions=[8, 128]).SerializeToString()
    halves = [protos.Shape(element_type=11, dimensions=[8]), protos.Shape(dimensions=[128])]
    other = b"".join(half.SerializeToString() for half in halves)
    a, b, c = (
        constant(name, n, shape=shape)
        for n, (name, shape) in enumerate(zip("abc", (plain, other, b""), strict=True))
    )
    module = Module(module_of(protos.Computation(name="c", id=1, root_id=0, instructions=[a, b, c])))
    first, second, third = module.instructions
    assert plain != other
    assert first.shape.short == "f32[8,128]"
    assert first.shape is second.shape
    assert third.shape != first.shape


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_anywhere_gives_an_error_or_a_module(data, tmp_path_factory, small_bytes):
    """Whatever a flipped or lost stretch of bytes does, nothing but UserError comes out, and what reads is whole."""
    position = data.draw(st.integers(0, len(small_bytes) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=8))
    drop = data.draw(st.integers(0, 8))
    damaged = small_bytes[:position] + junk + small_bytes[position + drop :]
    path = write(tmp_path_factory.getbasetemp() / "damaged.hlo.pb", damaged)
    try:
        module = read_hlo(path).module
    except UserError:
        return
    for instruction in module.instructions:
        assert repr(instruction)
        assert instruction.shape.padded_bytes >= 0 or instruction.shape.bytes < 0
        instruction.replica_groups  # noqa: B018
        instruction.frames  # noqa: B018
    assert module.trip_counts is not None
    assert module.executions(module.entry) == 1


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.hlo.pb")
    with pytest.raises(UserError, match="is no regular file"):
        read_hlo(tmp_path / "x.hlo.pb")


def test_a_file_larger_than_any_module_is_not_read(tmp_path):
    path = tmp_path / "x.hlo.pb"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="more than 2 GiB"):
        read_hlo(path)
