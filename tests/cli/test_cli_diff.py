"""`hloscope diff`: text, JSON, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.cli.shares import parse_share
from hloscope.errors import UserError

Run = Callable[..., tuple[int, str, str]]
Dump = Callable[[str], Path]


def test_the_same_twice(run: Run, dense: Path) -> None:
    code, out, err = run("diff", dense, dense, "--fail-on", "regression")
    assert (code, err) == (0, "")
    assert out.rstrip().endswith("nothing differs")


def test_a_report_of_an_earlier_run_stands_for_its_target(run: Run, dense: Path, tmp_path: Path) -> None:
    run("analyze", dense, "--json", tmp_path / "before.json")
    assert "nothing differs" in run("diff", tmp_path / "before.json", dense)[1]


def test_text_and_exit_code(run: Run, dump_file: Dump) -> None:
    pair = (dump_file("moe_jax010"), dump_file("moe_jax012"))
    code, out, err = run("diff", *pair, "--fail-on", "regression")
    assert code == 1
    assert err.startswith("failed: worse in ")
    assert re.search(r"\n  peak +5\.5 GiB +5\.7 GiB +\+207\.7 MiB \(\+3\.7 %\)\n", out)
    assert "worse  peak 5.5 GiB → 5.7 GiB" in out
    assert "  fixed  HS102 full-buffer pass that only concatenates or copies: copy backward" in out
    assert run("diff", *pair)[0] == 0
    code, out, _ = run("diff", *pair[::-1], "--fail-on", "regression", "--tolerance", "3%")
    assert code == 1, "the older compiler makes a copy more: a new finding"
    assert "worse  peak" not in out
    assert "worse  HS102" in out


def test_json(run: Run, dump_file: Dump) -> None:
    code, out, _ = run("diff", dump_file("moe_jax010"), dump_file("moe_jax012"), "--json", "-")
    content = json.loads(out)
    assert code == 0
    assert content["schema_version"] == 1
    assert any(r.startswith("peak ") for r in content["regressions"])
    assert [d["name"] for d in content["settings"]] == ["mesh"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fail-on", "warning"), "--fail-on takes regression, not 'warning'"),
        (("--tolerance", "much"), "--tolerance takes a share such as 2% or 0.02, not 'much'"),
        (("--json", "nowhere/d.json"), "cannot write the JSON report to nowhere/d.json"),
    ],
)
def test_what_is_refused(arguments: tuple[str, str], message: str, run: Run, dense: Path) -> None:
    code, out, err = run("diff", dense, dense, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_side_that_is_not_there(run: Run, dense: Path) -> None:
    assert run("diff", dense, "nowhere.pb")[::2] == (2, "error: there is no file or folder nowhere.pb\n")


def test_tolerances() -> None:
    assert [parse_share(t) for t in ("2%", "0.02", "0", "1.5 %", "100%")] == [0.02, 0.02, 0, 0.015, 1]
    for text in ("", "-1%", "200%", "nan", "2"):
        with pytest.raises(UserError):
            parse_share(text)


@pytest.mark.tpu_compile
def test_before_and_after_another_sharding(run: Run) -> None:
    steps = Path(__file__).parents[1] / "steps" / "sharded_gradient.py"
    before, after = f"{steps}:embed_sharded", f"{steps}:mlp_sharded"
    code, out, _ = run("diff", before, after, "--fail-on", "regression", "--tolerance", "1%")
    assert code == 0
    assert "  fixed  HS201 bf16[128,8,64,4096] transposed for its reduce-scatter" in out
    assert re.search(r"\n  HBM bytes .* −", out)
    code, out, err = run("diff", after, before, "--fail-on", "regression")
    assert code == 1
    assert "worse  HS201" in out
    assert "failed: worse in " in err


def test_the_same_module_with_the_settings_of_its_report(
    run: Run, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("analyze", dense, "--ignore", "HS301", "--json", "before.json")
    gate = ("diff", "before.json", dense, "--fail-on", "regression")
    code, out, _ = run(*gate)
    assert code == 0, "HS301 did not run on the one side"
    assert "HS301 not compared" in out
    code, out, _ = run(*gate, "--ignore", "HS301")
    assert (code, "nothing differs" in out) == (0, True)
    (tmp_path / "hloscope.toml").write_text("ignore = ['HS301']")
    assert "nothing differs" in run(*gate)[1], "the project's settings are heeded"
    assert run(*gate, "--select", "")[0] == 2


def test_the_same_module_with_the_options_of_its_report(run: Run, dump_file: Dump, tmp_path: Path) -> None:
    moe = dump_file("moe_jax012")
    options = ("--topology", "tpu7x:2x2x1", "--valid-fraction", "0.5")
    run("analyze", moe, *options, "--json", tmp_path / "m.json")
    code, out, _ = run("diff", tmp_path / "m.json", moe, *options, "--fail-on", "regression")
    assert (code, "nothing differs" in out) == (0, True)
    assert run("diff", tmp_path / "m.json", moe, "--valid-fraction", "2")[0] == 2


def test_rows_that_changed_in_time_alone_say_so(run: Run, dump_file: Dump, tmp_path: Path) -> None:
    moe = dump_file("moe_jax012")
    run("analyze", moe, "--topology", "tpu7x:2x2x1", "--json", tmp_path / "m.json")
    report = json.loads((tmp_path / "m.json").read_text())
    row = next(r for r in report["collectives"] if r["seconds"])
    row["seconds"] *= 2
    (tmp_path / "n.json").write_text(json.dumps(report))
    _, out, _ = run("diff", tmp_path / "m.json", tmp_path / "n.json")
    assert "+0 B" not in out
    assert re.search(r"changed +" + row["opcode"] + r".* \+[\d.]+ (ms|us)\n", out)
