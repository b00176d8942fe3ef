"""`hloscope check`: exit codes, formats, settings, baselines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from hloscope.hlo import protos, read_hlo
from hloscope.units import duration

Run = Callable[..., tuple[int, str, str]]

# Where the standard's own schema lies on this machine, if it does: its licence keeps it out of this repository.
OFFICIAL = os.environ.get("SARIF_SCHEMA")
SARIF = json.loads((Path(__file__).parents[1] / "data" / "sarif_written.schema.json").read_text())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(text: str) -> None:
    Path("hloscope.toml").write_text(text)


def test_a_clean_step_passes(run: Run, dense: Path) -> None:
    code, out, err = run("check", dense, "--select", "HS1", "--budget", "arena=1GiB")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith("passed")
    assert "arena  944.7 MiB of 1.0 GiB  kept" in out
    assert "Fusion census" not in out


def test_warnings_fail_and_are_said(run: Run, oom: Path) -> None:
    code, out, err = run("check", oom, "--select", "HS101")
    assert code == 1
    assert err == "failed: HS101 reached --fail-on\n"
    assert "failed  HS101 reached --fail-on" in out
    assert run("check", oom, "--select", "HS101", "--fail-on", "error")[0] == 0
    assert run("check", oom, "--select", "HS101", "--fail-on", "never")[0] == 0


def test_a_budget_on_findings_stands_for_the_gate_on_warnings(run: Run, oom: Path) -> None:
    one = ("check", oom, "--select", "HS101", "--budget")
    assert run(*one, "HS101=9")[0] == 0
    code, out, err = run(*one, "HS101=1")
    assert (code, err) == (1, "failed: over the budget for HS101\n")
    assert "HS101  5 of 1  exceeded by 4" in out
    assert run(*one, "warning=9", "--fail-on", "warning")[0] == 1


def test_executions_of_a_family(run: Run, dump_file: Callable[[str], Path]) -> None:
    deepseek = ("check", dump_file("deepseek"), "--fail-on", "never", "--budget")
    assert run(*deepseek, "executions.activation recompute=58")[0] == 0
    code, out, _ = run(*deepseek, "executions.activation recompute=57")
    assert code == 1
    assert "58 of 57  exceeded by 1" in out
    code, out, _ = run(*deepseek, "executions.wholly_other=57")
    assert code == 0
    assert "0 of 57  kept  the census has no family of this name\n" in out


def test_a_misspelt_family_is_refused(run: Run, dump_file: Callable[[str], Path]) -> None:
    """It would run 0 times, and the budget would always be kept."""
    deepseek = ("check", dump_file("deepseek"), "--fail-on", "never", "--budget")
    code, _, err = run(*deepseek, "executions.actvation=57")
    assert code == 2
    assert err == (
        "error: --budget executions.actvation: the census has no such family, but activation; "
        "if it is gone, write executions.actvation=0\n"
    )
    assert "activation recompute" in run(*deepseek, "executions.activation recomputed=1")[2]
    code, out, _ = run(*deepseek, "executions.actvation=0")
    assert code == 0
    assert "no family of this name; it has activation" in out
    code, out, _ = run(*deepseek, "executions.activation other=9")
    assert (code, "0 of 9  kept" in out) == (0, True), "the family is there, in other phases"


def test_the_exposed_time_says_what_it_is_of(run: Run, dump_file: Callable[[str], Path]) -> None:
    code, out, _ = run(
        "check", dump_file("deepseek"), "--topology", "tpu7x:4x8x8", "--fail-on", "never", "--budget",
        "exposed=1000s", "--format", "json",
    )  # fmt: skip
    assert code == 0
    report = json.loads(out)
    (budget,) = report["budgets"]
    assert budget["actual"] == report["time"]["exposed_seconds"]
    collectives = sum(c["exposed_seconds"] for c in report["collectives"])
    assert 0 < collectives < budget["actual"]
    rest = budget["actual"] - collectives
    assert budget["note"].endswith(
        f"{duration(collectives)} for collectives, {duration(rest)} for copies and other asynchronous work"
    )


def test_settings_of_the_project_and_the_command_line_wins(run: Run, oom: Path) -> None:
    settings(
        'select = ["HS101"]\nfail-on = ["error"]\n[budgets]\narena = "1GiB"\n[rules.HS101]\nseverity = "error"'
    )
    code, _, err = run("check", oom)
    assert (code, err) == (1, "failed: HS101 reached --fail-on\nfailed: over the budget for arena\n")
    code, _, err = run("check", oom, "--fail-on", "never", "--budget", "arena=1TiB")
    assert (code, err) == (0, "")
    code, out, _ = run("analyze", oom, "--json", "-")
    report = json.loads(out)
    assert code == 0, "budgets and fail-on of the project are for check"
    assert {(f["code"], f["severity"]) for f in report["findings"]} == {("HS101", "error")}
    assert report["budgets"] == []


def test_settings_that_are_wrong(run: Run, oom: Path) -> None:
    settings("[budgets]\nheap = 3")
    code, out, err = run("check", oom)
    assert (code, out) == (2, "")
    assert "hloscope.toml: budgets: --budget heap=3: write NAME=LIMIT" in err
    assert err.count("\n") == 1
    settings("selct = []")
    assert "did you mean 'select'" in run("analyze", oom)[2]
    assert "did you mean 'select'" in run("rules")[2]
    Path("other.toml").write_text("select = ['HS101']")
    assert run("check", oom, "--config", "other.toml", "--fail-on", "never")[0] == 0


def test_settings_are_looked_for_beside_the_step(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "hloscope.toml").write_text("selct = []")
    code, _, err = run("check", "model/train.py:step")
    assert code == 2
    assert "model/hloscope.toml: there is no 'selct'" in err


def test_a_baseline_from_first_to_last(run: Run, oom: Path) -> None:
    one = ("check", oom, "--select", "HS101")
    code, out, _ = run(*one, "--write-baseline", "known.toml")
    assert code == 0
    assert "5 findings of jit_step accepted by known.toml" in out
    text = Path("known.toml").read_text()
    assert text.count("[[step.finding]]") == 5
    assert run(*one)[0] == 1
    assert run(*one, "--baseline", "known.toml")[0] == 0

    settings("baseline = 'known.toml'")
    assert run(*one)[0] == 0
    assert "Baseline  5 findings of jit_step accepted by" in run("analyze", oom, "--select", "HS101")[1]

    head, *entries = text.split("\n[[step.finding]]\n")
    Path("known.toml").write_text("\n[[step.finding]]\n".join((head, *entries[1:])))
    code, out, _ = run(*one)
    assert code == 1
    assert "1 code, " in out, "the finding without an entry is new"

    Path("known.toml").write_text(text.replace(entries[0][:28], 'fingerprint = "000000000000"'))
    code, out, _ = run(*one, "--all")
    assert "1 entry without a finding" in out
    assert "000000000000" in out
    assert "known when this baseline was written" in out


def test_writing_a_baseline_tells_what_it_drops_and_keeps_what_others_wrote(
    run: Run, oom: Path, dense: Path
) -> None:
    run("check", oom, "--write-baseline", "known.toml")
    code, out, _ = run("check", dense, "--baseline", "known.toml", "--fail-on", "never")
    assert code == 0
    assert "it has no entries of this step, but of jit_step" in " ".join(out.split())
    run("check", dense, "--write-baseline", "known.toml")
    steps = tomllib.loads(Path("known.toml").read_text())["step"]
    assert [s["name"] for s in steps] == ["jit_step", "jit_train_step"]
    file = read_hlo(dense)
    proto = protos.HloProto(hlo_module=file.module.proto, buffer_assignment=file.buffer_assignment)
    proto.hlo_module.name = "jit_step"
    Path("other.hlo.pb").write_bytes(proto.SerializeToString())
    out = run("check", "other.hlo.pb", "--write-baseline", "known.toml")[1]
    assert f"{len(steps[0]['finding'])} entries without a finding removed" in out
    Path("known.toml").write_text("# to come\n")
    assert run("check", dense, "--write-baseline", "known.toml")[0] == 0
    kept = Path("known.toml").read_text()
    code, _, err = run("check", dense, "--write-baseline", "known.toml", "--budget", "temp=1GiB")
    assert code == 2
    assert "temp is unknown here" in err
    assert Path("known.toml").read_text() == kept


def test_baselines_written_at_once_lose_nothing(dense: Path) -> None:
    command = [sys.executable, "-m", "hloscope.cli.main", "check"]
    running = [
        subprocess.Popen(
            [*command, str(dense), "--topology", topology, "--write-baseline", "known.toml"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for topology in ("v6e:2x4", "v5e:2x4", "tpu7x:2x2x1")
    ]
    for process in running:
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, b"")
    assert len(tomllib.loads(Path("known.toml").read_text())["step"]) == 3


def test_no_two_outputs_in_one_place(run: Run, dense: Path) -> None:
    code, _, err = run("check", dense, "--write-baseline", "a", "--output", "./a")
    assert (code, err) == (2, "error: --output and --write-baseline name one file, a\n")
    assert not Path("a").exists()
    Path("dump.pb").write_bytes(dense.read_bytes())
    for command in (
        ("analyze", "dump.pb", "--html"),
        ("diff", dense, "dump.pb", "--json"),
        ("check", "dump.pb", "--output"),
    ):
        code, _, err = run(*command, "./dump.pb")
        assert (code, err) == (2, f"error: the target and {command[-1]} name one file, ./dump.pb\n")
    code, _, err = run("graph", "dump.pb", "fusion.264", "--format", "dot", "--output", "dump.pb")
    assert (code, err) == (2, "error: the target and --output name one file, dump.pb\n")
    Path("times.csv").write_text("name,seconds\n")
    code, _, err = run("calibrate", "dump.pb", "--times", "times.csv", "--output", "times.csv")
    assert (code, err) == (2, "error: --times and --output name one file, times.csv\n")
    assert Path("dump.pb").read_bytes() == dense.read_bytes()
    code, _, err = run("check", "step.py:main", "--output", "step.py")
    assert (code, err) == (2, "error: the target and --output name one file, step.py\n")
    assert run("check", dense, "--write-baseline", "/dev/null", "--output", "/dev/null")[0] == 0


def test_no_file_of_a_dump_is_written_over(run: Run, dense: Path) -> None:
    Path("dump").mkdir()
    module = Path("dump/module_0001.jit_train_step.after_optimizations.hlo.pb.gz")
    module.write_bytes(dense.read_bytes())
    for command in (
        ("analyze", "dump", "--json"),
        ("export", "dump", "--proto"),
        ("diff", dense, "dump", "--html"),
    ):
        code, _, err = run(*command, module)
        assert (code, err) == (
            2,
            f"error: {command[-1]} {module} is a file of the target: give another name\n",
        )
    assert module.read_bytes() == dense.read_bytes()
    # A report of an earlier run is no part of the dump that it lies beside.
    for _ in range(2):
        assert run("analyze", "dump", "--json", "dump/report.json")[0] == 0


def test_a_baseline_that_cannot_be_written_is_refused_before_a_compile(run: Run) -> None:
    code, _, err = run("check", "step.py", "--write-baseline", "nowhere/b.toml")
    assert code == 2
    assert err.startswith("error: cannot write the baseline to nowhere/b.toml: ")
    code, _, err = run("check", "step.py", "--write-baseline", "")
    assert (code, err) == (2, "error: cannot write the baseline to : the name is empty\n")


def test_a_baseline_holds_when_jax_and_libtpu_are_upgraded(
    run: Run, dump_file: Callable[[str], Path]
) -> None:
    older, newer = (("check", dump_file(n), "--select", "HS101,HS102") for n in ("moe_jax010", "moe_jax012"))
    assert run(*older, "--write-baseline", "known.toml")[0] == 0
    code, out, _ = run(*newer, "--baseline", "known.toml")
    assert code == 0
    assert "1 entry without a finding: mended, or changed" in out, "the newer compiler makes a copy less"
    assert run(*newer)[0] == 1


def test_a_baseline_in_the_json_report(run: Run, oom: Path) -> None:
    run("analyze", oom, "--select", "HS101", "--write-baseline", "known.toml")
    report = json.loads(
        run("check", oom, "--select", "HS101", "--baseline", "known.toml", "--format", "json")[1]
    )
    assert report["findings"] == []
    assert report["baseline"] == {
        "file": "known.toml",
        "step": "jit_step",
        "topology": None,
        "stale": [],
    }
    assert {s["finding"]["code"] for s in report["suppressed"]} == {"HS101"}
    assert all(s["reason"] for s in report["suppressed"])


def sarif(run: Run, *arguments: object) -> dict:
    log = json.loads(run("check", *arguments, "--format", "sarif")[1])
    jsonschema.Draft202012Validator(SARIF).validate(log)
    if OFFICIAL:
        jsonschema.Draft4Validator(json.loads(Path(OFFICIAL).read_text())).validate(log)
    return log["runs"][0]


def test_sarif(run: Run, oom: Path, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "xxxxxxxx").mkdir()
    (tmp_path / "xxxxxxxx" / "aot.py").touch()
    (tmp_path / "src").mkdir()
    found = sarif(run, oom, "--select", "HS101,HS201", "--budget", "arena=1GiB")
    rules = found["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == ["HS101", "HS201", "budget"]
    assert rules[0]["name"] == "FullBufferFusion"
    assert rules[0]["help"]["markdown"].startswith("# HS101 full-buffer-fusion")
    assert [r["ruleId"] for r in found["results"]] == ["HS101"] * 5 + ["budget"]
    place = found["results"][0]["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "xxxxxxxx/aot.py", "uriBaseId": "REPOSITORY"},
        "region": {"startLine": 19},
    }
    assert found["originalUriBaseIds"]["REPOSITORY"]["uri"] == f"{tmp_path.as_uri()}/"
    assert "suppressions" not in found["results"][0]


def test_every_sarif_result_has_a_location(run: Run, dense: Path, tmp_path: Path) -> None:
    # A code scanner refuses a whole log for one result without.
    budget = ("--budget", "peak=1GiB")
    outside = sarif(run, dense, *budget)["results"]
    assert len(outside) > 2
    assert all(r["locations"] for r in outside)
    assert outside[-1]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": dense.as_uri()}
    assert outside[-1]["message"]["text"] == "over the budget for peak: 1.1 GiB of 1.0 GiB, by 147.5 MiB"
    inside = tmp_path / "a dump.hlo.pb.gz"
    inside.write_bytes(dense.read_bytes())
    (tmp_path / ".git").mkdir()
    place = sarif(run, inside, *budget)["results"][-1]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "a%20dump.hlo.pb.gz", "uriBaseId": "REPOSITORY"}}


def test_sarif_tells_what_a_baseline_accepts(run: Run, oom: Path) -> None:
    run("check", oom, "--select", "HS101", "--write-baseline", "known.toml")
    run_of = sarif(run, oom, "--baseline", "known.toml", "--select", "HS101,HS104", "--budget", "arena=1B")
    *results, budget = run_of["results"]
    assert (budget["ruleId"], budget["suppressions"]) == ("budget", [])
    accepted = [r for r in results if r["suppressions"]]
    assert {r["ruleId"] for r in accepted} == {"HS101"}
    assert {r["ruleId"] for r in results} == {"HS101", "HS104"}
    assert accepted[0]["suppressions"] == [
        {"kind": "external", "status": "accepted", "justification": "known when this baseline was written"}
    ]


def test_junit(run: Run, oom: Path) -> None:
    out = run("check", oom, "--select", "HS101,HS201", "--budget", "arena=1GiB", "--format", "junit")[1]
    suite = ET.fromstring(out).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == [
        "compile",
        "HS101 full-buffer-fusion",
        "HS201 transposed-reduce-scatter",
        "budget arena",
    ]
    assert out.isascii()
    failure = cases["HS101 full-buffer-fusion"].find("failure")
    assert failure is not None
    assert "activation forward bf16[2621440,2048]" in (failure.text or "")
    assert list(cases["HS201 transposed-reduce-scatter"]) == []
    assert "GiB of 1.0 GiB" in (cases["budget arena"].find("failure").get("message"))  # pyright: ignore


def test_github_annotations(run: Run, oom: Path, tmp_path: Path) -> None:
    (tmp_path / "xxxxxxxx").mkdir()
    (tmp_path / "xxxxxxxx" / "aot.py").touch()
    code, out, _ = run("check", oom, "--select", "HS101", "--format", "github", "--budget", "arena=1GiB")
    lines = out.splitlines()
    assert code == 1
    assert len(lines) == 6
    assert lines[0].startswith("::error file=xxxxxxxx/aot.py,line=19,title=HS101 warning::full-buffer fusion")
    assert "%0A" in lines[0]
    assert "%25" not in lines[0]
    assert lines[5].startswith("::error title=budget arena::over the budget for arena: ")
    out = run("check", oom, "--select", "HS101", "--format", "github", "--fail-on", "never")[1]
    assert all(line.startswith("::warning ") for line in out.splitlines())


def test_a_format_in_a_file_leaves_the_text_to_the_terminal(run: Run, dense: Path) -> None:
    code, out, err = run("check", dense, "--select", "HS1", "--format", "sarif", "--output", "h.sarif")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith("passed")
    assert json.loads(Path("h.sarif").read_text())["version"] == "2.1.0"
    assert run("check", dense, "--select", "HS1", "--output", "h.txt")[0] == 0
    assert Path("h.txt").read_text().rstrip().endswith("passed")


def test_a_place_that_cannot_be_written_is_refused_before_a_compile(run: Run) -> None:
    code, out, err = run("check", "step.py", "--format", "sarif", "--output", "nowhere/h.sarif")
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot write the report to nowhere/h.sarif")


def test_a_format_that_there_is_not(run: Run, dense: Path) -> None:
    code, _, err = run("check", dense, "--format", "yaml")
    assert code == 2
    assert "'yaml'" in err
    assert "sarif" in err


def test_dumps_of_one_name_are_told_apart_by_their_topology(
    run: Run, dump_file: Callable[[str], Path]
) -> None:
    """Every MaxText module is called jit_train_step."""
    dense = ("check", dump_file("dense"), "--topology", "v6e:2x4", "--select", "HS3,HS5")
    larger = ("check", dump_file("qwen3_30b"), "--topology", "v6e:4x4", "--select", "HS3,HS5")
    for one in (dense, larger):
        assert run(*one, "--write-baseline", "known.toml")[0] == 0
    for one in (dense, larger):
        code, out, _ = run(*one, "--baseline", "known.toml")
        assert (code, "none that the baseline does not accept" in out) == (0, True)
        assert "without a finding" not in out


def test_entries_without_a_finding_are_counted_where_they_are_cut(
    run: Run, dump_file: Callable[[str], Path]
) -> None:
    larger = ("check", dump_file("qwen3_30b"), "--select", "HS1,HS3,HS5")
    run(*larger, "--write-baseline", "known.toml")
    text = Path("known.toml").read_text().replace('fingerprint = "', 'fingerprint = "0')
    Path("known.toml").write_text(text)
    _, out, _ = run(*larger, "--baseline", "known.toml", "--fail-on", "never")
    count = text.count("fingerprint =")
    assert f"{count} entries without a finding" in out
    assert f"{count - 4} more with --all" in out


def test_a_budget_on_no_rule_is_refused(run: Run, oom: Path) -> None:
    code, _, err = run("check", oom, "--budget", "HS9=1")
    assert (code, err) == (2, "error: --budget HS9: no rule begins with 'HS9'; see: hloscope rules\n")
    settings("[budgets]\nHS9 = 1")
    code, _, err = run("check", oom)
    assert code == 2
    assert "hloscope.toml: budgets: --budget HS9: no rule begins with 'HS9'" in err


def test_the_json_of_a_diff_is_no_report(run: Run, oom: Path) -> None:
    run("diff", oom, oom, "--json", "diff.json", "--quiet")
    code, _, err = run("diff", "diff.json", oom)
    assert (code, err) == (2, "error: diff.json is a diff, not a report: give what it compared\n")


@pytest.mark.parametrize("command", ["check", "analyze"])
@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize("value", ["", " ", ","])
def test_codes_of_an_unset_variable_are_refused(
    command: str, option: str, value: str, run: Run, dense: Path
) -> None:
    code, out, err = run(command, dense, option, value)
    assert (code, out) == (2, "")
    assert err == f"error: {option} is empty: write codes such as HS2 or HS201, or leave it out\n"


def test_empty_lists_in_settings(run: Run, oom: Path) -> None:
    for text, message in (
        ("select = []", 'hloscope.toml: select is empty: write ["HS2"], or leave it out'),
        ("fail-on = []", 'hloscope.toml: fail-on is empty: write ["warning"] or ["never"], or leave it out'),
        ("select = [',']", "hloscope.toml: select is empty: write codes such as HS2"),
        ("fail-on = ['HS9']", "hloscope.toml: fail-on HS9: there is no such rule"),
    ):
        settings(text)
        code, out, err = run("check", oom)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    settings("ignore = []\nselect = ['HS101']")
    assert run("check", oom)[0] == 1, "nothing is ignored"


def test_a_refused_budget_leaves_the_baseline_as_it_was(run: Run, oom: Path) -> None:
    code, _, err = run("check", oom, "--write-baseline", "known.toml", "--budget", "temp=1GiB")
    assert code == 2
    assert "temp is unknown here" in err
    assert not Path("known.toml").exists()
    assert run("check", oom, "--write-baseline", "known.toml", "--budget", "arena=1GiB")[0] == 1
    assert Path("known.toml").exists()


@pytest.mark.parametrize("command", ["check", "analyze"])
def test_of_a_failed_compile_nothing_is_accepted_and_that_is_said(command: str, run: Run, oom: Path) -> None:
    failed = (command, oom, "--topology", "v5e:2x4", "--select", "HS101", "--write-baseline", "known.toml")
    code, _, err = run(*failed)
    assert code == 3
    assert "the baseline known.toml is not written: the compile failed\n" in err
    assert "error: the step does not fit" in err
    assert not Path("known.toml").exists()
    Path("known.toml").write_text("version = 2\n")
    assert run(*failed)[0] == 3
    assert Path("known.toml").read_text() == "version = 2\n", "and what there was stays"


def test_a_step_that_leaves_no_dump_leaves_no_baseline(run: Run, tmp_path: Path) -> None:
    code, _, err = run("check", tmp_path / "nowhere.py", "--write-baseline", "known.toml")
    assert code == 2
    assert "baseline" not in err, "the input is wrong: nothing was compiled"


def test_a_gate_on_rules_that_do_not_run_is_refused(run: Run, oom: Path) -> None:
    """It could not fail."""
    for arguments, message in (
        (("--ignore", "HS1", "--budget", "HS1=0"), "--budget HS1: no rule of it runs"),
        (("--select", "HS2", "--budget", "HS101=0"), "--budget HS101: no rule of it runs"),
        (("--fail-on", "HS2", "--ignore", "HS2"), "--fail-on HS2: no rule of it runs"),
        (("--budget", "HS206=0"), "the budget on HS206 cannot be checked: the rule lacks what it needs here"),
    ):
        code, _, err = run("check", oom, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    settings("fail-on = ['HS2']\n[budgets]\nHS2 = 0\nHS101 = 9")
    code, out, _ = run("check", oom, "--select", "HS101")
    assert (code, "HS101  5 of 9  kept" in out, "HS2 " in out) == (0, True, False)
    assert run("check", oom, "--select", "HS203")[0] == 1


def test_budgets_and_gates_of_all_of_a_plug_in(run: Run, oom: Path) -> None:
    code, out, _ = run("check", oom, "--select", "HS101", "--budget", "HS=9")
    assert (code, "HS  5 of 9  kept" in out) == (0, True)
    assert run("check", oom, "--select", "HS101", "--fail-on", "HS")[0] == 1
    assert "--budget ACME: no rule begins with 'ACME'" in run("check", oom, "--budget", "ACME=0")[2]


def test_settings_say_which_line_is_wrong(run: Run, oom: Path) -> None:
    for text, message in (
        ("select = ['HS9']", "hloscope.toml: select: no rule begins with 'HS9'"),
        ("ignore = ['XX']", "hloscope.toml: ignore: no rule begins with 'XX'"),
        (
            "fail-on = ['wrning']",
            "hloscope.toml: fail-on: 'wrning' is no severity and no rule; did you mean 'warning'?",
        ),
        ("[budgets]\npeak = '1GiB'\nPEAK = '2GiB'", "hloscope.toml: budgets: peak is given twice"),
        ("[rules.HS203]\n[rules.hs203]", "rules: 'HS203' and 'hs203' are one"),
        (
            "[rules.HS203]\nsmallest-bytes = 1\nsmallest_bytes = 2",
            "'smallest-bytes' and 'smallest_bytes' are one",
        ),
    ):
        settings(text)
        code, _, err = run("check", oom)
        assert (code, err.count("\n")) == (2, 1), text
        assert message in err
    Path("hloscope.toml").unlink()
    Path("pyproject.toml").write_text("[tool.hloscpe]\nselect = ['HS1']")
    assert "there is a [tool.hloscpe]; did you mean [tool.hloscope]?" in run("check", oom)[2]
    assert (
        "--fail-on: 'warn' is no severity and no rule; did you mean 'warning'?"
        in run("check", oom, "--fail-on", "warn", "--config", "/dev/null")[2]
    )


@pytest.mark.parametrize("command", [("check", ""), ("analyze", " "), ("diff", "", "")])
def test_an_empty_target_is_not_the_current_folder(command: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert err.startswith("error: the target is empty")


def test_an_empty_baseline_is_no_baseline(run: Run, oom: Path) -> None:
    code, _, err = run("check", oom, "--baseline", "")
    assert (code, err) == (2, "error: --baseline is empty: name a file, or leave it out\n")


def test_entries_of_rules_that_cannot_judge_are_neither_mended_nor_dropped(
    run: Run, dump_file: Callable[[str], Path]
) -> None:
    """The text of a module has no buffer assignment."""
    proto, text = dump_file("dense"), dump_file("dense").with_name("qwen3_0p6b_dense.txt.gz")
    assert run("check", proto, "--write-baseline", "known.toml")[0] == 0
    written = Path("known.toml").read_text()
    assert 'code = "HS301"' in written
    code, out, _ = run("check", text, "--baseline", "known.toml")
    assert (code, "without a finding" in out) == (0, False)
    assert run("check", text, "--write-baseline", "known.toml")[0] == 0
    assert Path("known.toml").read_text() == written
