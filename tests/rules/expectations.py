"""Modules with their expectations beside the instructions: `// expect: HS104, HS201` at the end of a line."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from assignment import assign

from hloscope.analysis.bundle import Analyses
from hloscope.devices import chips
from hloscope.engine import get_rule, run_rules
from hloscope.hlo import Module
from hloscope.hlo.text import parse_text
from hloscope.rule import Finding

_EXPECT = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*//.*expect: ([\w, ]+)$", re.MULTILINE)
_REPEATED = re.compile(r"^(.*\{n\}.*// (\d+) of them.*)$", re.MULTILINE)
_BLOCK = re.compile(r"```hlo\n(.*?)```", re.DOTALL)


def example_of(code: str) -> str:
    """The module in the Example section of a rule's docs."""
    found = _BLOCK.search(get_rule(code).sections["Example"])
    assert found, f"the docs of {code} have no module to try"
    text = textwrap.dedent(found[1])
    return _REPEATED.sub(lambda m: "\n".join(m[1].replace("{n}", str(n)) for n in range(int(m[2]))), text)


def module_of(text: str) -> Module:
    """The module of a text; one without an entry has its instructions behind its last computation, as they run."""
    if "ENTRY" not in text:
        before, closing, body = re.sub(r"^ *\}$", "}", text, flags=re.MULTILINE).rpartition("\n}\n")
        text = f"HloModule example, is_scheduled=true\n{before}{closing}\nENTRY main {{\n{body}\n}}\n"
    proto = parse_text(text.encode(), "example.txt")
    # A text tells how many devices there are, not which ones.
    for device in range(proto.device_assignment.computation_count):
        proto.device_assignment.computation_devices.add(replica_device_ids=[device])
    return Module(proto)


def expected(text: str) -> dict[str, set[str]]:
    """Names of the marked instructions by code."""
    marked: dict[str, set[str]] = {}
    for name, codes in _EXPECT.findall(text):
        for code in codes.replace(" ", "").split(","):
            marked.setdefault(code, set()).add(name)
    return marked


def check(text: str, *codes: str, **known: Any) -> tuple[Finding, ...]:
    """Run rules on a module and hold them against its marks: every mark is in a finding, every finding has one.

    It runs on eight v6e chips, unless told otherwise.
    """
    marked = expected(text)
    known = {"chip": chips()["v6e"], "topology": "v6e:2x4", **known}
    module = module_of(text)
    findings = run_rules(Analyses(module, buffer_assignment=assign(module), **known), select=codes)
    for code in codes:
        found = [{i.name for i in f.instructions} for f in findings if f.code == code]
        names = marked.get(code, set())
        assert names <= set().union(*found), f"{code} misses {names - set().union(*found)}"
        assert all(f & names for f in found), f"{code} found what is not marked: {found}"
    return findings
