"""`hloscope apply-rules` and `analyze --plan`, on a step that compiles in seconds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

import jsonschema
import pytest

import hloscope
from hloscope.cli.main import main
from hloscope.plan import Plan
from hloscope.planner.candidates import Cluster, Described
from hloscope.planner.measured import Measured, measure
from hloscope.planner.run import Planner
from hloscope.units import size

STEPS = Path(__file__).parents[1] / "steps"
STEP = f"{STEPS / 'sharded_gradient.py'}:embed_sharded"
GOLDEN = Path(__file__).parents[1] / "golden"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["dump.hlo.pb"], "is no step file: only a step can be changed"),
        ([STEP, "--objective", "beauty"], "--objective beauty: write temp or time"),
        ([STEP, "--select", "X1"], "'X1' is no rule code"),
        ([STEP, "--save", "/nowhere/plan.toml"], "its folder is not there"),
        ([STEP, "--valid-fraction", "2"], "the valid fraction is a share of rows"),
        (
            [STEP, "--verify", "--verify-on", "cpu:x"],
            "--verify-on cpu:x: only the host can run a step: write cpu:8",
        ),
        ([STEP, "--timeout", "-3"], "--timeout takes seconds above 0, not -3"),
        ([STEP, "--select", "HS777"], "no rule begins with 'HS777'"),
        ([STEP, "--ignore", "HS9"], "no rule begins with 'HS9'"),
        ([STEP, "--select", "HS201", "--ignore", "HS2"], "no rule is left to run"),
        (
            [STEP, "--select", "HS305,HS504"],
            "apply-rules has no action for HS305, HS504: it has some for HS101",
        ),
        ([STEP, "--valid-fraction", "0"], "the valid fraction is a share of rows, above 0 and at most 1"),
        ([STEP, "--valid-fraction", "nan"], "above 0 and at most 1, not nan"),
        ([STEP, "--dry-run", "--save", "plan.toml"], "--dry-run tries nothing, so that --save has no plan"),
        ([STEP, "--dry-run", "--verify"], "--dry-run tries nothing, so that --verify has no plan"),
        ([STEP, "--verify-on", "cpu:4"], "--verify-on says where --verify runs the steps"),
        (["none.py"], "there is no file none.py"),
    ],
)
def test_what_is_wrong_is_told_before_any_compile(arguments: list[str], why: str, run: Run) -> None:
    code, out, err = run("apply-rules", *arguments, "--quiet")
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1


def test_a_plan_without_actions_is_told(run: Run, tmp_path: Path) -> None:
    plan, step = tmp_path / "plan.toml", tmp_path / "step.py"
    Plan().save(plan)
    step.write_text(
        "import hloscope as hs\n\n\n@hs.step\ndef step(topology):\n    raise ValueError('built')\n"
    )
    code, out, err = run("analyze", step, "--plan", plan, "--topology", "v5e:1x1", "--quiet")
    assert (code, out) == (2, "")
    assert err.startswith(f"the plan {plan} has no actions: the step stays as it is\n")


def test_a_plan_is_for_steps(run: Run, tmp_path: Path, dump_file: Callable[[str], Path]) -> None:
    plan = tmp_path / "plan.toml"
    Plan().save(plan)
    code, _, err = run("analyze", dump_file("dense"), "--plan", plan)
    assert code == 2
    assert "--plan is for steps" in err


@pytest.mark.tpu_compile
def test_a_sharded_axis_is_moved_measured_and_kept(run: Run, tmp_path: Path) -> None:
    plan, report, page = tmp_path / "plan.toml", tmp_path / "report.json", tmp_path / "report.html"
    places = ("--save", plan, "--json", report, "--html", page)
    code, out, err = run("apply-rules", STEP, "--select", "HS201", *places)
    assert code == 0
    assert "compile 2: w: fsdp over dimension 2, not 1, of [64, 1024, 4096]" in err
    told = json.loads(report.read_text())
    schema = json.loads((Path(hloscope.__file__).parent / "report" / "schema.json").read_text())
    jsonschema.validate(told, schema)
    (action,) = told["actions"]
    assert (action["kept"], action["predicted"]["sites"]) == (True, 1)
    assert action["measured"] == told["after"]
    assert told["after"]["temp_bytes"] < 0.6 * told["before"]["temp_bytes"]
    assert "HS201" in told["before"]["findings"]
    assert "HS201" not in told["after"]["findings"]
    assert told["plan"]["action"] == [action["action"]]
    # The golden is without times, which differ by compiler.
    assert told["after"]["seconds"] < 0.95 * told["before"]["seconds"]
    golden(out, "apply_rules_sharded_gradient.txt")
    shown = page.read_text()
    for text in (action["title"], action["reason"], size(told["before"]["temp_bytes"])):
        assert escape(text) in shown

    # The plan gives the same step again, from the store.
    code, out, err = run("analyze", STEP, "--plan", plan, "--select", "HS201", "--json", "-", "--quiet")
    assert code == 0
    again = json.loads(out)
    assert again["memory"]["temp_bytes"] == told["after"]["temp_bytes"]
    assert again["findings"] == []


@pytest.mark.tpu_compile
def test_what_was_measured_is_told_where_it_cannot_be_verified(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise hloscope.UserError("results of the step itself are NaN")

    monkeypatch.setattr(Planner, "verify", refused)
    plan, report = tmp_path / "plan.toml", tmp_path / "report.json"
    places = ("--save", plan, "--json", report, "--verify", "--quiet")
    code, out, err = run("apply-rules", STEP, "--select", "HS201", *places)
    assert code == 2
    assert "kept" in out
    assert json.loads(report.read_text())["after"]["temp_bytes"] > 0
    assert err == "no plan was written: it could not be verified\nerror: results of the step itself are NaN\n"
    assert not plan.exists()


@pytest.mark.tpu_compile
def test_a_step_that_does_not_fit_and_that_nothing_brings_down(run: Run, tmp_path: Path) -> None:
    step = tmp_path / "large.py"
    step.write_text(
        "import hloscope as hs\nimport jax\nimport jax.numpy as jnp\n"
        "from jax.sharding import NamedSharding, PartitionSpec\n\n\n"
        "@hs.step(topology='v5e:1x1')\ndef large(topology):\n"
        "    whole = NamedSharding(topology.mesh(d=1), PartitionSpec())\n"
        "    x = jax.ShapeDtypeStruct((131072, 128), jnp.float32, sharding=whole)\n"
        "    return hs.Step(lambda x: jnp.sort(x @ x.T, axis=0), args=(x,))\n"
    )
    code, out, err = run("apply-rules", step, "--quiet")
    assert code == 3
    assert "too much" in out, "what analyze shows of it"
    assert out.index("too much") < out.index("Nothing was kept")
    assert err.startswith("error: the step does not fit: it needs ")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, dump_file: Callable[[str], Path]) -> None:
    """The compiler's part played from a dump of a compile that ran out of memory."""
    failed = hloscope.load(dump_file("oom"), topology="v5e:2x4")
    assert failed.target.status == "failed"
    cluster = Cluster(key="forward/glu_rows/bf16[8,8]/model.py:1", kernel="glu_rows", refusal=None, proof=())
    broken = replace(cluster, key="forward/valid_rows/bf16[8,8]/model.py:2", refusal="sort reads its rows")
    told = Described(arrays=(), mesh={}, rule_sets={}, clusters=(cluster, broken))
    fits = replace(measure(failed), failed=None, temp_bytes=8 << 30, total_bytes=9 << 30)

    def attempt(_: Planner, wanted: list[object], rows: object) -> list[Measured]:
        return [fits for _ in wanted]

    monkeypatch.setattr(Planner, "compile", lambda *_: failed)
    monkeypatch.setattr(Planner, "describe", lambda _: told)
    monkeypatch.setattr(Planner, "attempt", attempt)


@pytest.mark.usefixtures("played")
def test_a_step_that_fits_at_last(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    code, out, err = run("apply-rules", STEP, "--save", plan, "--quiet")
    assert (code, err) == (0, f"plan: {plan}\n")
    assert out.index("8.7 GiB too much") < out.index("it compiles now")
    assert Plan.load(plan).actions


@pytest.mark.usefixtures("played")
def test_the_share_of_rows_is_told_to_go_with_the_plan(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    _, _, err = run("apply-rules", STEP, "--save", plan, "--valid-fraction", "0.5", "--quiet")
    assert err == f"plan: {plan} (measured with --valid-fraction 0.5: analyze --plan needs it too)\n"


@pytest.mark.usefixtures("played")
def test_what_is_not_proved_is_said_to_who_asks_for_it_and_cannot_see_it(run: Run) -> None:
    note = "1 cluster of row-wise work not proved: --explain"
    assert note in run("apply-rules", STEP, "--quiet")[1]
    explained = run("apply-rules", STEP, "--explain", "--quiet")[1]
    assert note not in explained
    assert "sort reads its rows" in explained
    assert note not in run("apply-rules", STEP, "--select", "HS2,HS301", "--quiet")[1]


@pytest.mark.tpu_compile
def test_a_dry_run_compiles_the_step_as_it_is_and_no_more(run: Run) -> None:
    code, out, err = run("apply-rules", STEP, "--dry-run", "--json", "-")
    assert code == 0
    assert "compile 2" not in err
    told = json.loads(out)
    assert [(a["kept"], a["measured"]) for a in told["actions"]] == [(None, None)]
    assert (told["before"], told["after"], told["plan"]) == (None, None, None)


@pytest.mark.tpu_compile
def test_a_step_without_findings_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    code, out, err = run("apply-rules", STEP, "--ignore", "HS2", "--save", plan, "--quiet")
    assert code == 0
    assert "no finding has an action that could be tried" in out
    assert "no plan was written: nothing was kept" in err
    assert not plan.exists()


@pytest.mark.tpu_compile
def test_a_plan_that_no_longer_fits(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'format = 1\n[[action]]\nkind = "mesh"\nparameter = "w"\n'
        'shape = [8, 8]\naxes = ["fsdp"]\nsource = 0\ntarget = 1'
    )
    code, out, err = run("analyze", STEP, "--plan", plan, "--quiet")
    assert (code, out) == (2, "")
    assert "the plan no longer fits: w: fsdp over dimension 1, not 0, of [8, 8]: its shape is" in err


def golden(text: str, name: str) -> None:
    """Compare with the golden file, times aside, as compilers differ in them; UPDATE_GOLDEN=1 writes it anew."""
    shown = re.sub(r"compiled in \S+ \S+", "compiled in … s", text)
    shown = re.sub(r"(measured .*) \S+ \S+ saved", r"\1 … saved", shown)
    shown = re.sub(r"(  estimated step) .*", r"\1 …", shown)
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(shown)
    assert shown == path.read_text()
