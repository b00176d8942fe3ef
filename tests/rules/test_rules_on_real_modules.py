"""What every rule finds on every real module at hand, for review: `UPDATE_GOLDEN=1` writes the table anew."""

from __future__ import annotations

import os
from pathlib import Path

from hloscope.analysis.bundle import Analyses
from hloscope.devices import chips
from hloscope.engine import load_rules, run_rules
from hloscope.hlo import HloFile
from hloscope.rule import Severity

GOLDEN = Path(__file__).parents[1] / "golden" / "findings_of_real_modules.txt"
# With what they were compiled for: without it there are no times.
MODULES = {
    "dense": "v6e:2x4",
    "qwen3_30b": "v6e:4x4",
    "deepseek": "tpu7x:4x8x8",
    "qwen35_397b": "tpu7x:4x4x8",
    "oom": "v5e:2x4",
    "moe_jax012": "tpu7x:2x2x1",
}


def analyses_of(file: HloFile, topology: str) -> Analyses:
    return Analyses(
        file.module,
        buffer_assignment=file.buffer_assignment,
        chip=chips()[topology.split(":")[0]],
        topology=topology,
    )


def table(shared_dump) -> str:
    lines = ["findings / places, of warnings and remarks (i), by rule and module", ""]
    lines.append("code   " + "".join(f"{m:>14}" for m in MODULES))
    found = {m: run_rules(analyses_of(shared_dump(m), topology)) for m, topology in MODULES.items()}
    for rule in load_rules():
        cells: list[str] = []
        for module in MODULES:
            of_rule = [f for f in found[module] if f.code == rule.code]
            mark = "i" if of_rule and all(f.severity is Severity.INFO for f in of_rule) else ""
            places = sum(f.places for f in of_rule)
            cells.append(f"{len(of_rule)} / {places}{mark}" if of_rule else "-")
        lines.append(f"{rule.code}  " + "".join(f"{c:>14}" for c in cells) + f"  {rule.name}")
    lines.append("")
    for module, topology in MODULES.items():
        lines.append(f"{module} ({topology})")
        lines += [f"  {f.code} {f.severity.value:7} x{f.executions} {f.title}" for f in found[module]]
    return "\n".join(lines) + "\n"


def test_findings_are_the_reviewed_ones(shared_dump):
    made = table(shared_dump)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(made)
    assert made == GOLDEN.read_text()
