"""HLO text that cannot be read: where and what, in one line; never anything but an error; in bounded time."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.errors import UserError
from hloscope.hlo import Module, read_hlo
from hloscope.hlo.text import parse_text
from hloscope.hlo.text_scan import TextError

DATA = Path(__file__).parents[1] / "data"
HEAD = "HloModule m\n\nENTRY e {\n"
MANY = 50_000


def refused(text: str) -> TextError:
    with pytest.raises(TextError) as caught:
        parse_text(text.encode(), "m.txt")
    return caught.value


def test_the_place_is_shown_with_a_caret() -> None:
    error = refused(HEAD + "  p = f32[2]{0} parameter(0)\n\tx = g32[2]{0} negate(p)\n}")
    assert str(error) == ("m.txt, line 5, column 6: there is no element type 'g32', at: g32[2]{0} negate(p)")
    assert error.excerpt == " x = g32[2]{0} negate(p)\n     ^"


@pytest.mark.parametrize(
    "last", ["  x = bf", "  x = bf\n", "  x = f32[2", "  x = f32[2]{0} negate(", "  x = f32[2]{0} nega"]
)
def test_text_that_breaks_off_may_have_been_cut_short(last: str) -> None:
    assert str(refused(HEAD + "  p = f32[2]{0} parameter(0)\n" + last)).endswith("cut short")
    assert "cut short" not in str(refused(HEAD + last + "\n}\n"))


def test_a_long_line_is_cut_around_the_place() -> None:
    error = refused(HEAD + "  p = (" + "f32[1]{0}, " * 5000 + "f32[x]) parameter(0)\n}")
    line, caret = error.excerpt.split("\n")
    assert len(line) <= 102
    assert line[caret.index("^") :].startswith("(f32[1]{0}")
    assert "\n" not in str(error)
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("x = f32[] parameter(one)", "line 4, column 3: expected an integer"),
        ("x = f32[] parameter(0), k=1, dimensions={a}", "line 4, column 43: dimensions: expected integers"),
        ("x = f32[2]{1} parameter(0)", "the layout does not fit the dimensions"),
        ("x = f32[-2] parameter(0)", "a dimension is negative"),
        ("x = f32[99999999999999999999] parameter(0)", "[Vv]alue out of range"),
        ("x = f32[] negate(y)", "there is no instruction %y in %e"),
        ("x = f32[] call(), to_apply=nothing", "there is no computation %nothing"),
        ("x = f32[] call(), to_apply=e", "%e calls itself"),
        (
            "x = f32[] parameter(0)\n y = f32[] negate(x), calls=f",
            "line 5, column 29: calls: negate calls nothing",
        ),
        ("x = f32[] negate(y)\n y = f32[] negate(x)", "is an operand of itself"),
        (
            "x = f32[] parameter(0)\n x = f32[] parameter(1)",
            "line 5, column 2: there are two instructions %x",
        ),
        ("ROOT x = f32[] parameter(0)\n ROOT y = f32[] parameter(1)", "two instructions marked ROOT"),
        ("x = f32[] parameter(0)\n y = f32[] negate(x#0)", "x#0: there is no such element"),
        ("x = f32[2]{0} constant({1, 2, 3})", "has 2 elements, this constant 3"),
        ("x = s32[] constant(4294967296)", "4294967296 does not fit the constant's type"),
        ("x = s32[] constant(1.5)", "expected an integer in this constant"),
        ("x = f32[] constant(one)", "expected a number in this constant"),
        ('x = f32[] parameter(0), metadata={op_name="a', "is not closed"),
        ("x = (f32[], s32[] parameter(0)", "does not match the '}'"),
        ("x = f32[2] reshape(", "line 5, column 1: expected the name of an operand, at: }"),
        ("x = f32[2] convolution(), dim_labels=b0f_0io", "dim_labels: expected dimension labels"),
        ("x = f32[2] convolution(), window={size=1x1 pad=0_0}", "window: the parts of this window differ"),
        ("x = f32[2] pad(), padding=1x2", "padding: expected low_high"),
        ("x = f32[2] slice(), slice={[0-3]}", "slice: expected"),
        ("x = f32[2] all-reduce(), replica_groups=[2]<=[2]", "replica_groups: expected replica groups"),
        ("x = f32[2] all-reduce(), replica_groups=mesh['a'=2] {'b'}", "the mesh has no axis 'b'"),
        ("x = f32[2] all-reduce(), use_global_device_ids=yes", "expected true or false"),
        ("x = f32[2] all-reduce-scatter-start()", "needs a shape"),
        ("x = reduce-window(), window={size=1}", "%x needs a shape before its opcode reduce-window"),
        ("x = f32[] y, z", "expected an opcode and its operands"),
        ("", "%e has no instructions"),
        ("x = f32[] parameter(0)\n}\n}", "expected a computation"),
        ("x = f32[] parameter(0)\n}\nHloModule n\n", "line 6, column 1: a second module begins here"),
        ("x = f32[] parameter(0)\n}\nENTRY f {\n y = f32[] constant(1)", "two computations marked ENTRY"),
        ("x = f32[] parameter(0)\n}\ne {\n y = f32[] constant(1)", "there are two computations %e"),
    ],
)
def test_what_is_wrong_is_said(body: str, message: str) -> None:
    error = refused(f"{HEAD}  {body}\n}}\n")
    assert re.search(message, str(error)), str(error)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("HloModule", "line 1, column 1: expected HloModule and the module's name"),
        ("HloModule m", "the module has no computations: the file is truncated"),
        ("HloModule m, is_scheduled=perhaps\n", "is_scheduled: expected true or false"),
        ("HloModule m, input_output_alias={ {0}: 3 }\n", "input_output_alias: expected"),
        (
            "HloModule m, input_output_alias={ {0}: (0, {}, some-alias) }\n",
            "there is no alias kind 'some-alias'",
        ),
        ("HloModule m, buffer_donor={ 3 }\n", "buffer_donor: expected"),
        ("HloModule m, entry_computation_layout={f32[2]}\n", "entry_computation_layout: expected"),
        ("HloModule m, num_partitions=eight\n", "num_partitions: expected an integer"),
    ],
)
def test_what_is_wrong_with_the_head_is_said(head: str, message: str) -> None:
    assert re.search(message, str(refused(head)))


def test_names_of_any_length_leave_a_readable_message() -> None:
    assert len(str(refused(HEAD + "x = f32[] negate(" + "y" * 10**6 + ")\n}"))) < 500


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "  p = " + "(" * MANY + "f32[]" + ")" * MANY + " parameter(0)\n}",
        HEAD + "  p = f32[] parameter(0), a=" + "{" * MANY + "}" * MANY,
        HEAD + "  p = f32[] parameter(0), a=" + "{" * MANY,
        HEAD + '  p = f32[] parameter(0), a={"' + '\\"' * MANY,
        HEAD + "  p = f32[] " + "add(" * MANY,
        HEAD + "  p = f32[] call(), " + "to_apply={ a = f32[] call(), " * 5000 + "}" * 5000,
        HEAD + "  p = f32[] parameter(0)\n  q = f32[] add(p" + "#0" * MANY + ")\n}",
        HEAD + "  p = f32[" + "1," * MANY + "1] parameter(0)\n}",
        HEAD + "  p = f32[1]{0:" + "P(f32[1]{0:" * MANY + "\n}",
        HEAD + "  p = f32[] parameter(0)" + " " * 10**6 + "x",
        HEAD + "  c = f32[] constant(" + "1" * MANY + ")\n}",
        HEAD + "  c = s64[10000000000,10000000000] constant({1})\n}",
        HEAD + "  c = f32[] convolution(), dim_labels=" + "0" * MANY + "_0->0\n}",
        HEAD + "".join(f"  q{i} = f32[] negate(q{i + 1})\n" for i in range(MANY)) + "}",
        "HloModule m\n" + "".join(f"c{i} {{\n a = f32[] call(), to_apply=c{(i + 1) % 999}\n}}\n" for i in range(999)),
        "HloModule m, frontend_attributes={" + "a=1," * MANY + "\n",
        "/*" * MANY,
        "HloModule m\n" + "/* " * MANY,
        "HloModule m // comment\n" + '"' + '\\"' * MANY,
        "HloModule m // comment\n" + "'" + "\\'" * MANY,
        HEAD + "  p = (" + "/*index=1" * MANY + ") parameter(0)\n}",
        "// " + "/*" * MANY + "\nHloModule m\n" + "//" * MANY,
    ],
)  # fmt: skip
def test_hostile_text_is_refused_at_once(text: str) -> None:
    refused(text)


def test_deep_chains_that_are_sound_are_read() -> None:
    forward = "".join(f"  q{i} = f32[] negate(q{i + 1})\n" for i in range(5000))
    module = Module(parse_text((HEAD + forward + "  q5000 = f32[] parameter(0)\n}").encode(), "m"))
    assert module.entry.instructions[0].name == "q5000"


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_bytes(
        b'HloModule m\nENTRY e {\n x = f32[] parameter(0), metadata={op_name="\xff"}\n}'
    )
    assert read_hlo(tmp_path / "m.txt").module.entry.root.op_name == "�"


@cache
def _seeds() -> tuple[str, ...]:
    """A stretch of a real module that stands for itself, and every small attribute language."""
    whole = gzip.decompress((DATA / "oom_toy_moe.txt.gz").read_bytes()).decode()
    head, *computations = re.split(r"\n\n(?=%|ENTRY)", whole)
    small = [c for c in computations if len(c) < 900 and "calls=" not in c and "to_apply=" not in c]
    languages = (
        HEAD
        + "  p = (f32[8]{0:T(8)}, /*index=1*/s32[<=2,?]) parameter(0), sharding={{replicated}, {devices=[2]<=[2]}}\n"
        "  c = f32[] convolution(p#0, p), window={size=2 pad=0_1}, dim_labels=bf_io->bf\n"
        "  r = f32[] all-reduce(c), replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a':(1)2}\n"
        '  s = ((f32[]), f32[], u32[]) slice-start(c), slice={[0:1:2]}, async_execution_thread="x"\n'
        '  k = s32[2]{0} constant({1, -2}), metadata={op_name="a\\"b" source_line=3}, backend_config={"a":[1,"}"]}\n'
        "  ROOT t = f32[] fusion(c, f32[] k), kind=kLoop, output_to_operand_aliasing={{0}: (0, {})},\n"
        "  calls={ z = f32[] parameter(0) }\n}\n"
    )
    return head + "\n\n" + "\n\n".join(small[:12]), languages


PIECES = [
    "{", "}", "(", ")", "[", "]", '"', "'", ",", "=", "%", "#0", "ROOT ", "/*", "*/", "//", "\\", "-1", "9" * 30,
    "f32[]", "T(8,128)", "<=", "?", "\0", "٣", "nan", "...", "to_apply=%x", "call-start(", "\n",
    "{" * 40, "(" * 50, "ENTRY ",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_text_gives_an_error_or_a_module(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(_seeds()))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        lost = data.draw(st.sampled_from([0, 0, 1, 2, 10, 300]))
        piece = data.draw(st.sampled_from(PIECES) | st.text(max_size=4))
        text = text[:at] + piece + text[at + lost :]
    try:
        module = Module(parse_text(text.encode("utf-8", "surrogatepass"), "m.txt"))
    except UserError:
        return
    for instruction in module.instructions:
        assert repr(instruction)
        assert instruction.shape.bytes >= 0 or "?" in text
        instruction.frames  # noqa: B018
    assert module.executions(module.entry) == 1


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.9999])
def test_a_truncated_file(share: float, tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "qwen3_0p6b_dense.txt.gz").read_bytes())
    (tmp_path / "m.txt").write_bytes(text[: int(len(text) * share)])
    with pytest.raises(UserError, match=r"m\.txt, line \d+, column \d+: "):
        read_hlo(tmp_path / "m.txt")


def test_a_file_cut_between_computations(tmp_path: Path) -> None:
    text = gzip.decompress((DATA / "qwen3_0p6b_dense.txt.gz").read_bytes())
    (tmp_path / "m.txt").write_bytes(text[: text.index(b"\nENTRY ")])
    with pytest.raises(UserError, match="no computation is marked ENTRY: the file is truncated"):
        read_hlo(tmp_path / "m.txt")
