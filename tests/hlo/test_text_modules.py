"""HLO text as a whole: asynchronous work, the module's head, files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from text_cases import ADD, P, entry, one, read

from hloscope.hlo import Module, async_operation, read_hlo
from hloscope.hlo.text import parse_text
from hloscope.hlo.text_sniff import is_text

LONG = """HloModule m, is_scheduled=true
work {
  w = f32[64]{0} parameter(0)
  ROOT scatter = f32[8]{0} reduce-scatter(w), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=add
}, execution_thread="sparsecore"
%(add)s
ENTRY main {
  p = f32[64]{0} parameter(0)
  s = ((f32[64]{0}), f32[8]{0}, u32[]{:S(8)}) async-start(p), async_execution_thread="sparsecore", calls=work
  u = ((f32[64]{0}), f32[8]{0}, u32[]{:S(8)}) async-update(s)
  ROOT d = f32[8]{0} async-done(u)
}"""
SHORT = """HloModule m, is_scheduled=true
%(add)s
ENTRY main {
  p = f32[64]{0} parameter(0)
  s = ((f32[64]{0}), f32[8]{0}, u32[]{:S(8)}) reduce-scatter-start(p), async_execution_thread="sparsecore",
    channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=add, metadata={op_name="jit(f)/psum"}
  u = ((f32[64]{0}), f32[8]{0}, u32[]{:S(8)}) reduce-scatter-update(s)
  ROOT d = f32[8]{0} reduce-scatter-done(u)
}"""


@pytest.mark.parametrize("text", [LONG, SHORT])
def test_asynchronous_work_in_both_spellings(text: str) -> None:
    module = read(text % {"add": ADD})
    start = next(i for i in module.entry if i.opcode == "async-start")
    operation = async_operation(start)
    assert (operation.opcode, operation.thread) == ("reduce-scatter", "sparsecore")
    assert operation.done is module.entry.root
    assert operation.work.dimensions == (0,)
    assert operation.work.replica_groups is not None
    assert [c.name for c in operation.work.called_computations] == ["add"]
    assert operation.work.computation.execution_thread == "sparsecore"
    assert module.executions(operation.work.computation) == 1


def test_the_thread_of_a_start_is_that_of_what_it_calls() -> None:
    module = read(LONG.replace('}, execution_thread="sparsecore"', "}") % {"add": ADD})
    assert next(c for c in module.computations if c.name == "work").execution_thread == "sparsecore"


def test_starts_that_are_opcodes_of_their_own() -> None:
    text = "(f32[8,16]{1,0}, f32[8,16]{1,0}, u32[]) copy-start(p)"
    assert one(f"x = {text}", parameters=P).opcode == "copy-start"


def test_a_computation_in_the_place_of_its_name() -> None:
    root = one(
        "c = f32[] call(k), to_apply={\n  a = f32[] parameter(0)\n  ROOT n = f32[] negate(a)\n}, channel_id=4",
        parameters="k = f32[] constant(1)",
    )
    assert root.called_computations[0].root.opcode == "negate"
    assert root.proto.channel_id == 4


HEAD = (
    "HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (1, {}, must-alias), {1,2}: (0, {3}, may-alias) }, "
    "buffer_donor={ (2, {}), (3, {1}) }, "
    "entry_computation_layout={(f32[8]{0:T(128)}, /*index=1*/(s32[], f32[2]))->f32[]}, "
    'num_partitions=8, replica_count=2, frontend_attributes={a="b"}, allow_spmd_sharding_propagation_to_output={true}'
)


def test_the_header() -> None:
    module = entry("x = f32[] parameter(0)", head=HEAD)
    proto = module.proto
    assert (module.name, module.is_scheduled, module.num_partitions) == ("jit_f", True, 16)
    first, second = proto.input_output_alias.entries
    assert (list(first.output_shape_index), first.parameter_number, first.kind) == ([0], 1, 2)
    assert (list(second.output_shape_index), list(second.parameter_shape_index)) == ([1, 2], [3])
    assert [e.parameter_number for e in proto.buffer_donor.entries] == [2, 3]
    assert len(proto.host_program_shape.parameters) == 2
    assert proto.host_program_shape.parameters[0].layout.tiles[0].dimensions == [128]
    assert dict(proto.frontend_attributes.map) == {"a": "b"}
    assert proto.entry_computation_name == "main"


def test_what_the_header_does_not_say_is_unknown() -> None:
    assert entry("x = f32[] parameter(0)").num_partitions is None


FRAMES = """
FileNames
1 "model.py"
2 "with \\"quotes\\".py"

FunctionNames
1 "step"
2 "<lambda>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=9}
2 {file_name_id=2 function_name_id=2 line=7}

StackFrames
1 {file_location_id=1 parent_frame_id=%d}
2 {file_location_id=2 parent_frame_id=%d}
"""


@pytest.mark.parametrize("parents", [(1, 2), (0, 1)])
def test_stack_frames(parents: tuple[int, int]) -> None:
    """Parents are counted from one, with one for none; in some texts from zero."""
    root = one('x = f32[] parameter(0), metadata={op_name="a" stack_frame_id=2}', before=FRAMES % parents)
    assert [(f.file, f.line, f.function) for f in root.frames] == [
        ('with "quotes".py', 7, "<lambda>"),
        ("model.py", 3, "step"),
    ]


@pytest.mark.parametrize(
    ("inner", "shown"),
    [
        ("/v/lib/hloscope/capture/moving.py", "step.py"),
        ("hloscope/rewrite/jaxprs.py", "step.py"),
        ("/v/lib/site-packages/jax/numpy.py", "step.py"),
        ("<frozen runpy>", "step.py"),
        ("/v/lib/hloscope_kernels/glu_rows.py", "/v/lib/hloscope_kernels/glu_rows.py"),
        ("/home/me/hloscope/capture.py", "/home/me/hloscope/capture.py"),
    ],
)
def test_the_source_is_in_the_users_own_code(inner: str, shown: str) -> None:
    frames = FRAMES.replace('with \\"quotes\\".py', inner).replace("model.py", "step.py") % (0, 1)
    root = one('x = f32[] parameter(0), metadata={op_name="a" stack_frame_id=2}', before=frames)
    assert [f.file for f in root.frames] == [inner, "step.py"]
    assert root.source is not None
    assert root.source.file == shown


def test_signatures_comments_and_line_ends() -> None:
    module = read(
        '// a licence: "quoted\nHloModule m, is_scheduled=false /* and */\r\n'
        "%f (a: f32[2]{0}, b: (s32[], s32[])) -> f32[2]{0} {\r\n  // don't\r\n  %a = f32[2]{0} parameter(0)\r\n"
        '  %b = (s32[], s32[]) parameter(1)\r\n  ROOT %n = f32[2]{0} negate(%a), metadata={op_name="http://x/*y*/"}\r\n}\r\n'
        "ENTRY %e () -> f32[] { ROOT k = f32[] constant(1) }"
    )
    assert [c.name for c in module.computations] == ["f", "e"]
    assert module.computations[0].root.op_name == "http://x/*y*/"


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_files_are_read(pack: object, tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf// comment\n\nHloModule m\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    (tmp_path / "m.txt").write_bytes(pack(text))  # pyright: ignore
    file = read_hlo(tmp_path / "m.txt")
    assert (file.module.name, file.buffer_assignment) == ("m", None)


def test_text_that_begins_with_a_computation() -> None:
    text = b"// RUN: x\nfused {\n  // comment\n  ROOT p = f32[] parameter(0)\n}\n"
    assert is_text(text)
    assert Module(parse_text(text, "m")).name == "module_fused"
    assert is_text(b"%f (p: f32[2]{0}) -> f32[2]{0} {\n  %p = f32[2]{0} parameter(0)\n}")


@pytest.mark.parametrize(
    "data", [b"", b"\n\x04jit_", b"module @jit_f {\n", b"HloModule", b"def f(x):\n  y = 1\n", b"{}"]
)
def test_other_files_are_no_text(data: bytes) -> None:
    assert not is_text(data)
