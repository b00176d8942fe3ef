"""Small modules as HLO text, for tests: a whole one, an entry, or the one instruction that a line is."""

from __future__ import annotations

from hloscope.hlo import Instruction, Module
from hloscope.hlo.text import parse_text

ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def read(text: str) -> Module:
    return Module(parse_text(text.encode(), "m.txt"))


def entry(*lines: str, head: str = "HloModule m", before: str = "") -> Module:
    return read(f"{head}\n{before}\nENTRY main {{\n" + "\n".join(lines) + "\n}\n")


def one(line: str, *, before: str = "", parameters: str = "") -> Instruction:
    """The instruction that a line is, after parameters and with computations before the entry."""
    return entry(parameters, line, before=before).entry.root


P = "p = f32[8,16]{1,0} parameter(0)"
PQ = P + "\n  q = f32[8,16]{1,0} parameter(1)"
