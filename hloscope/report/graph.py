"""A neighbourhood drawn: as a tree for the terminal, as DOT, and through Graphviz as SVG."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.tree import Tree

from hloscope.errors import UserError
from hloscope.report.escape import printable
from hloscope.report.terminal import cut, words

if TYPE_CHECKING:
    from rich.text import Text

    from hloscope.hlo import Instruction
    from hloscope.hlo.neighbourhood import Neighbourhood

# Siblings beyond this many are counted, not listed.
_WIDEST = 12
# A step takes four columns: what is further away has no room left on a line.
DEEPEST = 16
_DRAWING_SECONDS = 120
_STYLES = {"operand": "solid", "control": "dotted", "calls": "dashed"}


def tree(around: Neighbourhood, hops: int, *, everything: bool = False) -> Tree:
    """What the centre reads, calls and is read by, each as deep as `hops`, at most `DEEPEST`; what was shown is not
    opened again."""
    root = Tree(_line(around.centre), guide_style="dim")
    most = None if everything else _WIDEST
    deep = min(hops, DEEPEST)
    # In no steps nothing can be told, which is not that there is nothing.
    for title, forwards in (("reads", False), ("is read by", True)) if hops else ():
        branch = root.add(words((title, "bold")))
        _grow(
            branch, around, around.centre, forwards=forwards, hops=deep, most=most, shown={around.centre.id}
        )
        if not branch.children:
            branch.add(words(("nothing", "dim")))
    return root


def _grow(
    branch: Tree,
    around: Neighbourhood,
    instruction: Instruction,
    *,
    forwards: bool,
    hops: int,
    most: int | None,
    shown: set[int],
) -> None:
    if hops == 0:
        return
    near = [
        (e.target if forwards else e.source, e.kind)
        for e in around.edges
        if (e.source if forwards else e.target) is instruction
    ]
    for other, kind in near[:most]:
        again = other.id in shown
        child = branch.add(_line(other, kind=kind, again=again))
        if not again:
            shown.add(other.id)
            _grow(child, around, other, forwards=forwards, hops=hops - 1, most=most, shown=shown)
    if most is not None and len(near) > most:
        branch.add(words((f"and {len(near) - most} more (--all shows them)", "dim")))


def _line(instruction: Instruction, *, kind: str = "operand", again: bool = False) -> Text:
    named = instruction.op_name.rsplit("/", 1)[-1] if "/" in instruction.op_name else ""
    source = instruction.source
    return words(
        (f"{kind}: " if kind != "operand" else "", "dim"),
        (f"%{cut(instruction.name, 80)}", "cyan"),
        f"  {cut(str(instruction.shape), 80)}  {_operation(instruction)}",
        (f"  {cut(named, 40)}" if named else "", "bold"),
        (f"  {source.file.rsplit('/', 1)[-1]}:{source.line}" if source and not again else "", "dim"),
        ("  (above)" if again else "", "dim"),
    )


def _operation(instruction: Instruction) -> str:
    kind = instruction.fusion_kind or instruction.custom_call_target
    return f"{instruction.opcode} {cut(kind, 40)}" if kind else instruction.opcode


def dot(around: Neighbourhood) -> str:
    """The neighbourhood in Graphviz's language, computations as clusters."""
    lines = ["digraph hlo {", '  node [shape=box, fontname="monospace", fontsize=10];']
    by_computation: dict[int, list[Instruction]] = {}
    for instruction in around.instructions:
        by_computation.setdefault(instruction.computation.id, []).append(instruction)
    for number, members in by_computation.items():
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_quoted([f'%{members[0].computation.name}'])}; style=rounded;")
        lines += [f"    {_node(i, is_centre=i is around.centre)}" for i in members]
        lines.append("  }")
    lines += [f"  n{e.source.id} -> n{e.target.id} [style={_STYLES[e.kind]}];" for e in around.edges]
    return "\n".join([*lines, "}", ""])


def _node(instruction: Instruction, *, is_centre: bool) -> str:
    label = _quoted([f"%{instruction.name}", _operation(instruction), cut(str(instruction.shape), 60)])
    style = ", style=filled, fillcolor=lightblue" if is_centre else ""
    return f"n{instruction.id} [label={label}{style}];"


def _quoted(lines: Iterable[str]) -> str:
    """A DOT string; its lines are separated as DOT does it."""
    safe = (printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(safe) + '"'


def svg(around: Neighbourhood) -> bytes:
    """The neighbourhood as a drawing, laid out by Graphviz. Raises UserError where that is not installed."""
    program = shutil.which("dot")
    if program is None:
        raise UserError(
            "drawing an SVG needs Graphviz's dot, which is not installed: install graphviz, or take --format dot"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"],
            input=dot(around).encode(),
            capture_output=True,
            check=False,
            timeout=_DRAWING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UserError("Graphviz is still laying this out after two minutes: take fewer --hops") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise UserError(f"Graphviz's dot failed: {reason[0]}")
    return done.stdout
