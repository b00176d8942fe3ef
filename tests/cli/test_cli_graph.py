"""`hloscope graph`: the neighbourhood of an instruction as a tree, as DOT and as SVG."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from hlo_builder import HloBuilder

from hloscope.hlo import Module
from hloscope.hlo import neighbourhood as room
from hloscope.hlo.neighbourhood import neighbourhood
from tests.cli.conftest import Run


@pytest.fixture
def module() -> Module:
    """p -> a -> fusion(body: x -> y) -> b -> c, and d after b without reading it."""
    hlo = HloBuilder()
    body = hlo.computation("body", fusion=True)
    x = body.parameter("f32[8]", name="x")
    body.add("negate", "f32[8]", x, name="y")
    entry = hlo.entry()
    p = entry.parameter("f32[8]", name="p")
    a = entry.add("negate", "f32[8]", p, name="a")
    f = entry.add(
        "fusion", "f32[8]", a, a, name="f", calls=body, fusion_kind="kLoop", op_name="jit(step)/neg"
    )
    b = entry.add("negate", "f32[8]", f, name="b")
    d = entry.add("iota", "f32[8]", name="d", control_predecessor_ids=[b.id])
    entry.add("add", "f32[8]", b, d, name="c")
    return hlo.module()


@pytest.fixture
def path(module: Module, tmp_path: Path) -> Path:
    place = tmp_path / "module.pb"
    place.write_bytes(module.proto.SerializeToString())
    return place


def around(module: Module, name: str, hops: int) -> set[str]:
    centre = module.find(name)
    assert centre is not None
    return {i.name for i in neighbourhood(centre, hops).instructions}


def test_every_kind_of_edge_is_a_step(module: Module) -> None:
    assert around(module, "f", 0) == {"f"}
    assert around(module, "f", 1) == {"f", "a", "b", "y"}
    assert around(module, "f", 2) == {"f", "a", "b", "y", "p", "x", "c", "d"}
    assert around(module, "y", 1) == {"y", "x", "f"}
    centre = module.find("d")
    assert centre is not None
    kinds = {(e.source.name, e.target.name, e.kind) for e in neighbourhood(centre, 1).edges}
    assert kinds == {("d", "c", "operand"), ("b", "d", "control"), ("b", "c", "operand")}


def test_a_crowd_is_cut(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST", 3)
    centre = module.find("f")
    assert centre is not None
    found = neighbourhood(centre, 2)
    assert found.is_cut
    assert len(found.instructions) == 3


def test_the_tree(run: Run, path: Path) -> None:
    code, out, err = run("graph", path, "%f", "--hops", "1")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "%f  f32[8]{0}  fusion kLoop  neg",
        "├── reads",
        "│   ├── %a  f32[8]{0}  negate",
        "│   └── calls: %y  f32[8]{0}  negate",
        "└── is read by",
        "    └── %b  f32[8]{0}  negate",
    ]


def test_a_tree_of_no_steps_is_the_instruction(run: Run, path: Path) -> None:
    code, out, err = run("graph", path, "f", "--hops", "0")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["%f  f32[8]{0}  fusion kLoop  neg"]


def test_the_name_of_an_output_in_text_is_found(run: Run, path: Path) -> None:
    assert run("graph", path, "%f#0") == run("graph", path, "f")
    assert run("graph", path, "%f#x")[0] == 2


def test_any_number_of_steps(run: Run, path: Path) -> None:
    assert run("graph", path, "p", "--hops", "9" * 30) == run("graph", path, "p", "--hops", "5")


def test_a_tree_is_no_deeper_than_a_line_has_room(run: Run, tmp_path: Path) -> None:
    hlo = HloBuilder()
    entry = hlo.entry()
    last = entry.parameter("f32[8]", name="p")
    for number in range(1500):
        last = entry.add("negate", "f32[8]", last, name=f"n{number}")
    place = tmp_path / "chain.pb"
    place.write_bytes(hlo.module().proto.SerializeToString())
    code, out, err = run("graph", place, "p", "--hops", "1000")
    assert (code, err) == (0, "a tree shows 16 steps around: --format dot draws them all\n")
    assert out.rstrip().endswith("%n15  f32[8]{0}  negate")
    code, out, err = run("graph", place, "p", "--hops", "1000", "--format", "dot")
    assert (code, out.count(" -> "), err) == (0, 1000, "")


def test_dot(run: Run, path: Path, tmp_path: Path) -> None:
    code, out, _ = run("graph", path, "b", "--hops", "1", "--format", "dot")
    assert code == 0
    assert out.startswith("digraph hlo {\n")
    assert out.count(" -> ") == 3 + 1  # f -> b, b -> c, b -> d, and d -> c between them
    assert out.count("style=dotted") == 1
    assert run("graph", path, "b", "--hops", "1", "-o", tmp_path / "b.dot")[0] == 0
    assert (tmp_path / "b.dot").read_text() == out


def test_svg_is_graphvizs(run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run("graph", path, "b", "--format", "svg")
    assert code == 2
    assert "needs Graphviz's dot, which is not installed" in err
    dot = tmp_path / "dot"
    dot.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:], len(sys.stdin.read()) > 100)\n")
    dot.chmod(dot.stat().st_mode | stat.S_IXUSR)
    assert run("graph", path, "b", "-o", tmp_path / "b.svg")[0] == 0
    assert (tmp_path / "b.svg").read_text() == "['-Tsvg'] True\n"
    dot.write_text(f"#!{sys.executable}\nimport sys\nprint('no such font', file=sys.stderr)\nsys.exit(1)\n")
    code, _, err = run("graph", path, "b", "--format", "svg")
    assert code == 2
    assert "Graphviz's dot failed: no such font" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["y1"], "has no instruction %y1; near it: y"),
        (["b", "--hops", "-1"], "--hops takes a number of steps, 0 or more, not -1"),
        (["b", "--format", "png"], "there is no format 'png': --format takes tree, dot, svg"),
        (["b", "--format", "tree", "-o", "x"], "a tree is for the terminal: --output takes .dot and .svg"),
    ],
)
def test_what_cannot_be_drawn(arguments: list[str], message: str, run: Run, path: Path) -> None:
    code, _, err = run("graph", path, *arguments)
    assert code == 2
    assert message in err
