from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hloscope
from hloscope.cli.main import main
from hloscope.cli.progress import progress, stage_in_words
from hloscope.engine import load_rules
from hloscope.hlo import HloFile

ANALYZE = [sys.executable, "-m", "hloscope.cli.main", "analyze"]


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloscope.cli.main", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )


def python(script: str) -> str:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after some code; its output is left aside."""
    script = f"import sys\nfrom hloscope.cli.main import main\n{code}\nprint('LOADED', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    (loaded,) = (row for row in done.stdout.splitlines() if row.startswith("LOADED"))
    return set(loaded.split())


@pytest.mark.parametrize("arguments", ["['--help']", "['--version']", "['analyze', '--help']", "[]"])
def test_help_waits_for_nothing(arguments: str) -> None:
    heavy = {
        "jax",
        "jaxlib",
        "numpy",
        "networkx",
        "google.protobuf",
        "rich",
        "hloscope.hlo",
        "hloscope.capture",
    }
    assert not heavy & modules_after(f"assert main({arguments}) == 0")


def test_reading_a_dump_never_imports_jax(shared_dump: Callable[[str], HloFile]) -> None:
    path = str(shared_dump("oom").path)
    loaded = modules_after(f"assert main(['analyze', {path!r}, '--json', '/dev/null']) == 0")
    assert "numpy" in loaded
    assert "rich" in loaded
    assert not {"jax", "jaxlib", "networkx"} & loaded


def test_the_public_names_are_there_and_come_late() -> None:
    assert sorted(hloscope.__all__) == hloscope.__all__
    for name in hloscope.__all__:
        assert getattr(hloscope, name) is not None
        assert name in dir(hloscope)
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        _ = hloscope.bogus  # pyright: ignore
    script = "import sys, hloscope; hloscope.step; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"jax", "numpy", "typer", "google.protobuf"} & set(done.stdout.split())


def test_load_is_the_way_in_for_programs(shared_dump: Callable[[str], HloFile]) -> None:
    report = hloscope.load(shared_dump("dense").path, topology="v6e:2x4")
    assert isinstance(report, hloscope.Report)
    assert report.memory.total_bytes == 1271377728
    assert report.to_dict()["target"]["chip"] == "v6e"
    assert report.to_text().startswith("jit_train_step")
    with pytest.raises(hloscope.UserError, match="there is no file"):
        hloscope.load("nowhere.pb")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"hloscope {hloscope.__version__}\n"


def test_help_names_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert all(
            word in out for word in ("analyze", "explain", "rules", "topologies", "3 the compile failed")
        )


def test_explain_shows_a_rules_docs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for rule in load_rules():
        assert main(["explain", rule.code.lower()]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{rule.code}  {rule.name}")
        assert all(re.search(rf"^{heading}$", out, re.MULTILINE) for heading in rule.sections)
        assert "```" not in out
        prose = [text for heading, text in rule.sections.items() if heading != "Options"]
        words = re.sub(r"```hlo|`+", "", " ".join(prose)).split()
        assert set(words) - {"-"} <= set(out.split())  # lists are drawn with dots


def test_rules_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["rules"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^HS\d+", out, re.MULTILINE) == [r.code for r in load_rules()]
    assert all(set(r.summary.split()) <= set(out.split()) for r in load_rules())


def test_topologies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topologies"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"tpu7x +tpu7x:4x4x4 +2 +94\.7 GiB", out)
    assert "cpu:8" in out


def test_progress_on_a_terminal_is_one_live_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hloscope.capture import Event

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress(quiet=False) as on_event:
        assert on_event is not None
        on_event(Event(stage="compile", seconds=1.0))
    assert capsys.readouterr().out == ""
    with progress(quiet=True) as nobody:
        assert nobody is None
    assert stage_in_words(Event(stage="lower", seconds=0.0)) == "lowering"


def test_an_ascii_terminal_gets_ascii(shared_dump: Callable[[str], HloFile]) -> None:
    done = process("analyze", str(shared_dump("oom").path), PYTHONIOENCODING="ascii", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "jit_step | tpu" in done.stdout


def test_a_reader_that_has_seen_enough(shared_dump: Callable[[str], HloFile]) -> None:
    for options in (["--json", "-"], []):
        command = [*ANALYZE, str(shared_dump("oom").path), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdout.close()
            assert child.stderr.read() == ""
            assert child.wait(timeout=60) == 0


def test_ctrl_c_ends_a_capture_quietly(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    command = [*ANALYZE, str(tmp_path / "slow.py")]
    environment = {**os.environ, "HLOSCOPE_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stderr is not None
        while "running the script" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.stderr.read() == "interrupted\n"
        assert child.wait(timeout=60) == 130


def test_a_full_disk_is_an_error_line(shared_dump: Callable[[str], HloFile]) -> None:
    command = [*ANALYZE, str(shared_dump("oom").path)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"


def test_a_reader_that_has_seen_enough_changes_no_exit_code(shared_dump: Callable[[str], HloFile]) -> None:
    command = [*ANALYZE, str(shared_dump("oom").path), "--fail-on", "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read().startswith("failed: HS")
        assert child.wait(timeout=60) == 1


def test_rules_without_their_docs() -> None:
    assert "HS201" in process("rules", PYTHONOPTIMIZE="2").stdout
    done = process("explain", "HS201", PYTHONOPTIMIZE="2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "run hloscope without that" in done.stderr
