from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len

from hloscope.analysis.ragged import ValidRows
from hloscope.errors import UserError
from hloscope.hlo import HloFile, Instruction, SourceFrame
from hloscope.report.budgets import Budget, parse_limits
from hloscope.report.build import build_report
from hloscope.report.identity import chip_of_topology
from hloscope.report.model import Report
from hloscope.report.target import Opened
from hloscope.report.terminal import draw, fit_width
from hloscope.report.text import render
from hloscope.report.views import Findings
from hloscope.rule import Finding, Severity

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {"dense": "v6e:2x4", "oom": "v5e:2x4"}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


Dump = Callable[[str], HloFile]


@pytest.fixture
def report(shared_dump: Dump) -> Callable[..., Report]:
    def make(name: str, **options: object) -> Report:
        file = shared_dump(name)
        return build_report(Opened(source=file.path.name, file=file), **options)  # pyright: ignore

    return make


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", CASES)
def test_the_whole_text(name: str, width: int, report: Callable[..., Report]) -> None:
    """Set UPDATE_GOLDEN=1 to write the files anew, then read the difference."""
    text = report(name, topology=CASES[name]).to_text(width=width)
    path = GOLDEN / f"report_{name}_{width}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("width", [1, 60, 80, 200])
@pytest.mark.parametrize("name", ["dense", "oom", "qwen3_30b", "deepseek"])
def test_no_line_is_wider_than_asked(
    name: str, width: int, everything: bool, report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    # Narrower than 80 columns a table would have to leave out figures: the terminal wraps it instead.
    drawn = fit_width(width)
    assert drawn == max(80, min(width, 160))
    plain = report(name).to_text(width=width, everything=everything).splitlines()
    assert [row for row in plain if cell_len(row) > drawn] == []
    coloured = draw(render(report(name), width=drawn, everything=everything), drawn, Terminal())
    assert [row.rstrip() for row in ANSI.sub("", coloured).splitlines()] == plain
    assert "\x1b[" in coloured


def test_all_shows_every_family(report: Callable[..., Report]) -> None:
    whole = report("deepseek")
    short, full = whole.to_text(width=160), whole.to_text(width=160, everything=True)
    assert "with --all" in short
    assert "with --all" not in full
    assert full.count("\n") > short.count("\n") + len(whole.census.families) - 20


def test_a_step_that_does_not_fit(report: Callable[..., Report]) -> None:
    text = report("oom", topology="v5e:2x4").to_text()
    assert "8.7 GiB too much" in text
    assert "of 15.8 GiB usable HBM" in text
    assert "GiB left" not in text.split("Alive")[0]


def test_the_unknown_is_called_unknown(report: Callable[..., Report], shared_dump: Dump) -> None:
    text = report("dense").to_text()
    assert "chip unknown" in text
    assert "HBM unknown: --topology names the chip" in text
    assert re.search(r"temp +unknown", text)
    file = shared_dump("dense")
    bare = build_report(
        Opened(source="x", file=HloFile(path=file.path, module=file.module, buffer_assignment=None))
    )
    text = bare.to_text()
    assert re.search(r"total +unknown  the file does not tell", text)
    assert re.search(r"peak +unknown", text)


def finding(instruction: Instruction, code: str = "HS201", **fields: object) -> Finding:
    values = {
        "code": code,
        "severity": Severity.WARNING,
        "title": f"a pattern of {code}",
        "instructions": (instruction,),
        "places": 1,
        "source": SourceFrame("/a/b/c.py", 7, "f"),
        "executions": 1,
        "bytes": 4 << 30,
        "saved_bytes": 1 << 30,
        "saved_seconds": None,
        "fix": "safe",
        "advice": "do this instead",
        "details": ("one", "two", "three", "four", "five"),
    }
    return Finding(**(values | fields))  # pyright: ignore


def test_findings_say_what_where_and_what_to_do(report: Callable[..., Report]) -> None:
    base = report("dense")
    found = next(iter(base.memory.buffers_at_peak)).instruction
    assert found is not None
    text = replace(
        base,
        findings=Findings(
            (
                finding(found, severity=Severity.ERROR),
                finding(
                    found, "HS101", saved_bytes=None, details=("of one", "of both"), places=3, fix="none"
                ),
                finding(
                    found,
                    "HS101",
                    saved_bytes=None,
                    facts={"valid_fraction": None},
                    details=("of both",),
                    fix="none",
                ),
                finding(found, title="another pattern", bytes=None, saved_bytes=None, details=()),
                finding(found, title="a wait", saved_bytes=None, saved_seconds=2e-3, details=()),
            )
        ),
    ).to_text(width=100)
    block = text[text.index("Findings") :].split("\n\n")[0].splitlines()
    assert block == [
        "Findings  2 codes, 7 sites",
        "  HS201  a pattern of HS201",
        "         error · 1 site · 1.0 GiB wasted a step  b/c.py:7",
        "         one",
        "         two",
        "         three",
        "         four",
        "         1 more line with --all",
        "  HS201  another pattern",
        "         warning · 1 site · waste unknown  b/c.py:7",
        "  HS201  a wait",
        "         warning · 1 site · 4.0 GiB moved, about 2.00 ms wasted a step  b/c.py:7",
        "      →  do this instead",
        "         hloscope apply-rules STEP tries that, and keeps it if it helps",
        "  HS101  a pattern of HS101",
        "         warning · 3 sites · 4.0 GiB moved a step, waste unknown  b/c.py:7",
        "         of one",
        "  HS101  a pattern of HS101",
        "         warning · 1 site · 4.0 GiB moved a step, waste unknown  b/c.py:7",
        # What findings of one code share is said once.
        "         of both",
        "         waste unknown without the valid-row share: --valid-fraction",
        "      →  do this instead",
    ]


def test_what_is_not_ragged_asks_for_no_valid_fraction(report: Callable[..., Report]) -> None:
    base = report("dense")
    found = base.memory.buffers_at_peak[0].instruction
    assert found is not None
    known = finding(found, facts={"valid_fraction": None})
    text = replace(base, findings=Findings((finding(found, saved_bytes=None), known))).to_text()
    assert "--valid-fraction" not in text


RAGGED = """\
Ragged buffers  only the first sum(group_sizes) rows are tokens
     rows  groups  n  kernels     hold tokens  streamed in full by
  524,288      64  1  gmm / tgmm{share:>13}  4 fusions
  524,288      64  1  gmm{share:>20}  2 fusions
  {reason}
"""


@pytest.mark.parametrize(
    ("fraction", "share", "reason"),
    [
        (
            None,
            "unknown",
            "unknown: the program does not show what the group sizes add up to; "
            "--valid-fraction prices the empty rows",
        ),
        (0.5, "50 %", "50 %, given with --valid-fraction"),
        (1.0, "100 %", "100 %, given with --valid-fraction: every row is a token, nothing is wasted"),
    ],
)
def test_ragged_buffers_are_shown_with_who_told_their_share(
    fraction: float | None, share: str, reason: str, report: Callable[..., Report]
) -> None:
    text = report("deepseek", valid_fraction=fraction).to_text(width=120, everything=True)
    assert RAGGED.format(share=share, reason=reason) in text
    assert ("--valid-fraction 0.5" in text) == (fraction is None)
    assert ("HS101" in text) == (fraction != 1)


def test_like_ragged_buffers_are_folded_and_the_proof_is_told(report: Callable[..., Report]) -> None:
    base = report("deepseek")
    reason = "the group sizes count 524,288 assignments, each to an existing group, in 524,288 rows"
    proved = replace(base.ragged_buffers[0], valid=ValidRows(fraction=1.0, source="proved", reason=reason))
    text = replace(base, ragged_buffers=(proved, proved)).to_text(width=160)
    assert "  524,288      64  2  gmm / tgmm        100 %  8 fusions\n" in text
    assert f"  100 %, proved: {reason}: every row is a token, nothing is wasted\n" in text


def test_no_ragged_buffers_no_section(report: Callable[..., Report]) -> None:
    assert "Ragged" not in report("dense").to_text()


def test_the_compilers_own_figures_stand_beside_the_derived_ones(report: Callable[..., Report]) -> None:
    base = report("dense")
    figures = replace(
        base.memory,
        temp_bytes=2 * (base.memory.arena_bytes or 0),
        compiler_peak_bytes=5,
        disagreements=("peak_bytes: the compiler says 5, its buffer assignment 7",),
    )
    text = replace(base, memory=figures).to_text()
    assert "  temp          1.8 GiB  the compiler's temp_size_in_bytes, 2.00 × the arena\n" in text
    assert "the figure that people quote; in programs with loops it exceeds the arena\n" in text
    assert "peak_bytes: the compiler says 5, its buffer assignment 7\n" in text
    assert "where nearly everything fits into VMEM, the compiler counts its peak there\n" in text
    small = replace(base, memory=replace(base.memory, temp_bytes=1000)).to_text()
    assert "  temp           1000 B  the compiler's temp_size_in_bytes\n" in small
    assert "people quote" not in base.to_text()
    assert "VMEM" not in base.to_text()


def test_budgets_are_shown(report: Callable[..., Report]) -> None:
    base = report("dense")
    budgets = (
        Budget(name="arena", unit="bytes", limit=1 << 29, actual=1 << 30),
        Budget(name="generated_code", unit="bytes", limit=1 << 30, actual=1 << 30),
        Budget(name="HS101", unit="count", limit=1000, actual=1001),
        Budget(name="executions.unsort", unit="count", limit=4, actual=0, note="no such family"),
    )
    text = replace(base, budgets=budgets).to_text()
    assert "  arena              1.0 GiB of 512.0 MiB  exceeded by 512.0 MiB\n" in text
    assert "  generated_code       1.0 GiB of 1.0 GiB  kept\n" in text
    assert "1,001 of 1,000  exceeded by 1\n" in text
    assert "0 of 4  kept  no such family\n" in text


def test_a_failed_compile_says_so_first(report: Callable[..., Report]) -> None:
    base = report("oom")
    target = replace(
        base.target, status="failed", error="the step does not fit", warnings=tuple(f"w{i}" for i in range(9))
    )
    rows = replace(base, target=target).to_text().splitlines()
    assert rows[1:3] == ["the compile failed: the step does not fit", "this is what the compiler left behind"]
    assert rows[3:8] == ["note: w0", "note: w1", "note: w2", "note: w3", "note: 5 more in the JSON report"]


def test_a_topology_of_another_size_is_doubted(report: Callable[..., Report]) -> None:
    assert report("dense", topology="v6e:4x4").target.warnings == (
        "v6e:4x4 has 16 devices, but the module is for 8",
    )
    assert report("dense", topology="v6e:2x4").target.warnings == ()
    assert report("dense", topology="tpu7x:2x2x1").target.warnings == ()
    assert report("dense", topology="v2:2x2").memory.hbm_limit_bytes is None


def test_a_topology_that_names_no_chip_is_refused() -> None:
    with pytest.raises(UserError, match="unknown topology 'banana'"):
        chip_of_topology("banana")
    assert chip_of_topology("v7x:4x4x4") == "tpu7x"


def test_budgets_on_the_unknown_are_an_error(report: Callable[..., Report]) -> None:
    base = report("dense")
    assert base.with_budgets(parse_limits(["arena=1B", "total=1024TiB"])).budgets == (
        Budget(name="arena", unit="bytes", limit=1, actual=990543904),
        Budget(name="total", unit="bytes", limit=2**50, actual=1271377728),
    )
    with pytest.raises(UserError, match=r"temp is unknown here .* known: arena, total, peak, argument"):
        base.with_budgets(parse_limits(["temp=1B"]))


def test_the_top_says_what_the_findings_come_to(report: Callable[..., Report]) -> None:
    base = report("oom")
    found = base.findings[0]
    priced = replace(found, saved_bytes=2**30, places=1)
    unpriced = replace(found, saved_bytes=None, places=1)
    both = replace(base, findings=Findings((priced, priced))).to_text()
    assert "found 2 sites: 2.0 GiB wasted a step; details" in both
    some = replace(base, findings=Findings((priced, unpriced))).to_text()
    assert "found 2 sites: at least 1.0 GiB wasted a step; details" in some
    none = replace(base, findings=Findings((unpriced,))).to_text()
    assert "found 1 site; details" in none
