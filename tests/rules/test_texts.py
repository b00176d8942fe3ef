"""What findings say reads well whatever is not known: no None, no gap, no zero where something is merely small."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from assignment import assign
from expectations import example_of, module_of
from test_rules_on_real_modules import MODULES, analyses_of

from hloscope.analysis.bundle import Analyses
from hloscope.devices import chips
from hloscope.engine import load_rules, run_rules
from hloscope.hlo import Module
from hloscope.report.text_findings import price, waste
from hloscope.rule import Finding
from hloscope.units import duration, percent, share

CODES = [r.code for r in load_rules()]
# A word for what is missing, a place where a word is missing, a figure that rounds to nothing.
_CLUMSY = re.compile(
    r"\bNone\b|\bnan\b|unknown unknown|unknown mesh|\bover (unknown|forward|backward|recompute|other)\b|  | [,;:.]"
    r"|\( ?\)|^\s|\s$|^[,;:]|[,;:]$|\bother$|(?<!waste) unknown$|(?<![\d.])0(\.0+)? ?(B|%|s|ns)(?!\w)"
)


def clumsy(finding: Finding) -> list[str]:
    texts = (finding.title, finding.advice, *finding.details, waste(finding))
    return [text for text in texts if text is not None and _CLUMSY.search(text)]


def nothing_runs_a_known_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Module, "executions", lambda module, computation: None)
    monkeypatch.setattr(Module, "trip_counts", property(lambda module: dict.fromkeys(range(10**4))))


def examples(code: str) -> list[Analyses]:
    """The example of a rule, which names no mesh, no phase and no line, with a chip and its places, and without."""
    module = module_of(example_of(code))
    buffers = assign(module)
    return [
        Analyses(module, buffer_assignment=buffers, chip=chips()["v6e"], topology="v6e:2x4"),
        Analyses(module, buffer_assignment=buffers, chip=chips()["v6e"]),
        Analyses(module, buffer_assignment=buffers),
        Analyses(module),
    ]


@pytest.mark.parametrize("code", CODES)
def test_where_the_program_names_nothing(code: str) -> None:
    found = [run_rules(analyses, select=[code]) for analyses in examples(code)]
    assert found[0]
    assert [text for each in found for f in each for text in clumsy(f)] == []


@pytest.mark.parametrize("code", [c for c in CODES if c not in ("HS205", "HS206")])
def test_where_nobody_knows_how_often_anything_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HS205 and HS206 count runs: what runs an unknown number of times is not among them."""
    nothing_runs_a_known_number_of_times(monkeypatch)
    found = [run_rules(analyses, select=[code]) for analyses in examples(code)]
    assert found[0]
    assert {f.bytes for each in found for f in each} == {None}
    assert [text for each in found for f in each for text in clumsy(f)] == []


@pytest.mark.parametrize("name", MODULES)
def test_on_real_modules(name: str, shared_dump) -> None:
    file = shared_dump(name)
    found = (*run_rules(Analyses.of_file(file)), *run_rules(analyses_of(file, MODULES[name])))
    assert found
    assert [text for f in found for text in clumsy(f)] == []


def test_the_check_sees_what_is_clumsy() -> None:
    (finding,) = run_rules(examples("HS203")[0], select=["HS203"])
    assert clumsy(finding) == []
    for title in (
        "a None",
        "x over unknown mesh axes unknown",
        "a  b",
        "x , y",
        "x other",
        "0 B moved",
        "0.0% of it",
    ):
        assert clumsy(replace(finding, title=title)) == [title]


def test_prices_of_nothing_are_left_out_and_small_ones_are_no_zero() -> None:
    figures, times = (None, 0, 1, 5 << 20), (None, 0.0, 1e-15, 2e-9, 0.5)
    for saved, seconds, held, moved in itertools.product(figures, times, figures, figures):
        text = price(saved, seconds, held, moved)
        assert not _CLUMSY.search(text), text
        known = [saved, seconds, None if saved == 0 else held]
        assert any(known) == ("wasted" in text or "held" in text), text
    assert price(None, None, None, 0) == "no HBM bytes moved, waste unknown"
    assert price(0, None, None, 1 << 20) == "no bytes to save"
    assert duration(1e-15) == "< 0.01 ns"
    assert (percent(1, 10**6), percent(0, 5), share(1e-9), share(0)) == ("< 1 %", "0 %", "< 0.01 %", "0 %")
