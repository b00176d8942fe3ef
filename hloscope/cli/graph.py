"""`hloscope graph`: the neighbourhood of an instruction, drawn."""

from __future__ import annotations

import difflib
import sys
from dataclasses import dataclass
from pathlib import Path

from hloscope.cli import examine
from hloscope.cli.output import refuse_one_place, write_bytes, write_text
from hloscope.errors import UserError
from hloscope.files import write_whole
from hloscope.hlo import Instruction, Module
from hloscope.hlo.neighbourhood import MOST, neighbourhood
from hloscope.report import graph

FORMATS = ("tree", "dot", "svg")
_SUGGESTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope graph`."""

    target: str
    instruction: str
    hops: int = 2
    format: str | None = None
    output: str | None = None
    topology: str | None = None
    module: str | None = None
    everything: bool = False


def run(request: Request) -> int:
    """Draw, and return the exit code. What a failed compile left is drawn too, and its `CompileError` raised then."""
    form = _format(request)
    refuse_one_place(request.target, output=request.output)
    if request.hops < 0:
        raise UserError(f"--hops takes a number of steps, 0 or more, not {request.hops}")
    wanted = examine.Request(target=request.target, topology=request.topology, module=request.module)
    opened, failure = examine.open_request(wanted)
    around = neighbourhood(_find(opened.file.module, request.instruction), request.hops)
    if around.is_cut:
        print(f"more than {MOST} instructions: the nearest are shown; take fewer --hops", file=sys.stderr)
    if form == "tree":
        if max(around.distance.values()) > graph.DEEPEST:
            print(f"a tree shows {graph.DEEPEST} steps around: --format dot draws them all", file=sys.stderr)
        drawn = graph.tree(around, request.hops, everything=request.everything)
        write_text(lambda width: drawn, sys.stdout)
    else:
        _write(request, graph.svg(around) if form == "svg" else graph.dot(around).encode())
    if failure is not None:
        raise failure
    return 0


def _write(request: Request, data: bytes) -> None:
    if request.output is None:
        write_bytes(data, sys.stdout)
    else:
        write_whole(request.output, [data])


def _format(request: Request) -> str:
    """The format asked for, else the one that the output's name tells, else a tree."""
    ending = Path(request.output).suffix[1:] if request.output else "tree"
    form = request.format or ending
    if form not in FORMATS:
        raise UserError(f"there is no format {form!r}: --format takes {', '.join(FORMATS)}")
    if form == "tree" and request.output is not None:
        raise UserError("a tree is for the terminal: --output takes .dot and .svg")
    return form


def _find(module: Module, name: str) -> Instruction:
    # Optimized text writes an output of a fusion as %fusion.56#0.
    whole, _, output = name.partition("#")
    found = module.find(name) or (module.find(whole) if output.isdigit() else None)
    if found is not None:
        return found
    names = [i.name for i in module.instructions]
    plain = name.removeprefix("%")
    near = [n for n in names if plain and plain in n][:_SUGGESTED]
    near = near or difflib.get_close_matches(plain, names, _SUGGESTED)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise UserError(f"module {module.name!r} has no instruction %{plain[:100]}{hint}")
