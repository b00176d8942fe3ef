"""`hloscope calibrate`: times made with known shares give those shares back, and wrong input is one line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_builder import trace_bytes

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.calibrate import Measured, calibrate, with_shares
from hloscope.cli.main import main
from hloscope.devices import chips, with_figures
from hloscope.hlo import HloFile

TRUE = {"hbm_efficiency": 0.61, "matrix_efficiency": 0.5, "ici_efficiency": 0.4}
TOPOLOGY = "v6e:2x4"


def analyses_of(file: HloFile) -> Analyses:
    return Analyses(file.module, chip=chips()["v6e"], topology=TOPOLOGY)


def times_of(analyses: Analyses, bound: str, least: int = 0) -> list[tuple[str, float]]:
    """Instructions that one term bounds by far, with the times that they take at other shares."""
    module, costs = analyses.module, analyses.costs
    true = analyses.with_chip(with_shares(chips()["v6e"], TRUE)).costs
    found: list[tuple[str, float]] = []
    for computation in module.control_computations:
        for instruction in computation.instructions:
            cost, other = costs.of(instruction), true.of(instruction)
            if cost.seconds and other.seconds and cost.bound_by == other.bound_by == bound:
                found.append((instruction.name, other.seconds))
    assert len(found) > least
    return found


def measured(analyses: Analyses, times: list[tuple[str, float]]) -> list[Measured]:
    found = [(name, seconds, analyses.module.find(name)) for name, seconds in times]
    return [Measured(name=n, seconds=s, parts=((i, 1),)) for n, s, i in found if i is not None]


def test_times_give_their_shares_back(shared_dump: Callable[[str], HloFile]) -> None:
    analyses = analyses_of(shared_dump("dense"))
    times = times_of(analyses, "bandwidth", 20)
    found = calibrate(analyses, measured(analyses, times))
    (figure,) = found.figures
    assert (figure.name, figure.value) == ("hbm_efficiency", pytest.approx(0.61, abs=1e-3))
    assert figure.times == len(times)
    # Most that bandwidth bounds are transfers and nothing else.
    assert found.error_before == pytest.approx(1 - 0.61, abs=0.02)
    assert found.error_after == pytest.approx(0, abs=1e-3)
    assert found.unused == ()


def test_what_makes_no_figure_is_told(shared_dump: Callable[[str], HloFile]) -> None:
    analyses = analyses_of(shared_dump("dense"))
    (name, seconds), *_ = times_of(analyses, "bandwidth")
    parameter = analyses.module.entry.parameters[0].name
    found = calibrate(
        analyses, measured(analyses, [(name, seconds), (name, seconds / 10), (parameter, 1e-3)])
    )
    assert found.figures == ()
    reasons = dict(found.unused)
    assert "3 times at least" in reasons[name] or "published figures" in reasons[name]
    assert any("published figures" in reason for _, reason in found.unused)
    assert "no figure scales" in reasons[parameter]


def test_the_file_is_for_chip_figures(
    dump_file: Callable[[str], Path],
    shared_dump: Callable[[str], HloFile],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    analyses = analyses_of(shared_dump("dense"))
    rows = [*times_of(analyses, "bandwidth")[:30], *times_of(analyses, "wire")]
    times, out = tmp_path / "times.csv", tmp_path / "figures.toml"
    times.write_text("name,seconds\n" + "".join(f"%{name},{seconds!r}\n" for name, seconds in rows))
    target = str(dump_file("dense"))
    assert main(["calibrate", target, "--times", str(times), "-o", str(out), "--topology", TOPOLOGY]) == 0
    said = capsys.readouterr().out
    table = tomllib.loads(out.read_text())
    assert table["v6e"]["hbm_efficiency"] == pytest.approx(0.61, abs=1e-3)
    # A collective's latency does not scale with the share, so small ones pull the median up.
    assert 0.4 <= table["v6e"]["ici_efficiency"] < 0.6
    assert "median error" in said
    chip = with_figures(chips()["v6e"], str(out))
    assert chip.ici.efficiency == table["v6e"]["ici_efficiency"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_family_has_the_time_of_a_whole_step(
    dump_file: Callable[[str], Path], shared_dump: Callable[[str], HloFile], tmp_path: Path
) -> None:
    analyses = analyses_of(shared_dump("dense"))
    alike = [f for f in analyses.census.families if f.bytes and f.executions]
    names = sorted({f.family for f in alike})
    rows = {
        name: sum(
            (analyses.costs.of(i).seconds or 0) * (analyses.module.executions(i.computation) or 0)
            for f in alike
            if f.family == name
            for i in f.instructions
        )
        for name in names
    }
    times, out = tmp_path / "times.csv", tmp_path / "figures.toml"
    times.write_text(
        "name,seconds\n" + "".join(f'"{name}",{2 * seconds!r}\n' for name, seconds in rows.items() if seconds)
    )
    target = str(dump_file("dense"))
    assert main(["calibrate", target, "--times", str(times), "-o", str(out), "--topology", TOPOLOGY]) == 0
    # A little less than half: twice the time of the whole is more than twice that of the transfers.
    assert 0.45 < tomllib.loads(out.read_text())["v6e"]["hbm_efficiency"] < 0.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read the times"),
        ("instruction,ms\nfusion.1,3\n", "must name the columns: name,seconds"),
        ("name,seconds\n", "holds no times"),
        ("name,seconds\nfusion.1,fast\n", "line 2: a name and seconds above 0"),
        ("name,seconds\nfusion.1,-1\n", "line 2: a name and seconds above 0"),
        ("name,seconds\nnothing.77,0.1\n", "no instruction and no family 'nothing.77'"),
    ],
)
def test_wrong_times_are_one_line(
    text: str | None,
    said: str,
    dump_file: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = tmp_path / "times.csv"
    if text is not None:
        times.write_text(text)
    out = tmp_path / "figures.toml"
    code = main(
        ["calibrate", str(dump_file("dense")), "--times", str(times), "-o", str(out), "--topology", TOPOLOGY]
    )
    err = capsys.readouterr().err
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_without_a_chip_there_is_nothing_to_fit(
    dump_file: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.csv"
    times.write_text("name,seconds\nfusion.1,0.1\n")
    assert main(["calibrate", str(dump_file("dense")), "--times", str(times)]) == 2
    assert "give --topology" in capsys.readouterr().err


def test_a_trace_gives_the_median_of_each_operation(
    dump_file: Callable[[str], Path],
    shared_dump: Callable[[str], HloFile],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    analyses = analyses_of(shared_dump("dense"))
    module = analyses.module
    times = times_of(analyses, "bandwidth")[:20]
    loop = next(i for c in module.control_computations for i in c.instructions if i.opcode == "while")
    start = next(
        i for c in module.control_computations for i in c.instructions if i.opcode.endswith("-start")
    )
    others = [(loop.name, 1.0), (start.name, 1e-9), ("not_here.1", 1.0)]
    # Of three runs one is slow: the median is of the others.
    runs = [[*others, *((name, seconds * slow) for name, seconds in times)] for slow in (1, 3, 1)]
    trace, out = tmp_path / "vm.xplane.pb", tmp_path / "figures.toml"
    trace.write_bytes(trace_bytes([(f"{module.name}(5)", run) for run in runs]))
    command = ["calibrate", str(dump_file("dense")), "--topology", TOPOLOGY, "-o", str(out), "--times"]
    assert main([*command, str(trace)]) == 0
    assert tomllib.loads(out.read_text())["v6e"]["hbm_efficiency"] == pytest.approx(0.61, abs=1e-3)
    said = " ".join(capsys.readouterr().out.split())
    assert f"{loop.name}: its time is that of what it calls" in said
    assert f"{start.name}: asynchronous" in said
    assert "not_here.1: the module has no such instruction" in said


@pytest.mark.parametrize(
    ("module", "operation", "said"),
    [
        ("jit_other(5)", "fusion.1", "has no run of {name}; it has jit_other"),
        ("{name}(5)", "not_here.1", "is in the module: are both of one compile?"),
    ],
)
def test_a_trace_of_something_else_is_one_line(
    module: str,
    operation: str,
    said: str,
    dump_file: Callable[[str], Path],
    shared_dump: Callable[[str], HloFile],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = shared_dump("dense").module.name
    trace = tmp_path / "vm.xplane.pb"
    trace.write_bytes(trace_bytes([(module.format(name=name), [(operation, 1e-3)])]))
    command = ["calibrate", str(dump_file("dense")), "--topology", TOPOLOGY, "--times", str(trace)]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert said.format(name=name) in err
    assert len(err.strip().splitlines()) == 1
