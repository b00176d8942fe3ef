from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import hloscope
from hloscope.cli.main import app, main
from hloscope.cli.progress import progress, stage_in_words
from hloscope.engine import load_rules
from hloscope.hlo import HloFile, protos

HLOSCOPE = [sys.executable, "-m", "hloscope.cli.main"]
ANALYZE = [*HLOSCOPE, "analyze"]


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HLOSCOPE, *arguments],
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


def test_the_package_itself_is_the_command() -> None:
    command = [sys.executable, "-m", "hloscope"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=120)
    assert version.stdout == f"hloscope {hloscope.__version__}\n"
    wrong = subprocess.run(
        [*command, "explain", "HS999"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize(("given", "left"), [({}, None), ({"OPENBLAS_NUM_THREADS": "1"}, "1")])
def test_no_threads_are_started_for_linear_algebra_and_what_is_started_later_does_not_hear_of_it(
    shared_dump: Callable[[str], HloFile], given: dict[str, str], left: str | None
) -> None:
    path = str(shared_dump("oom").path)
    script = (
        "import os\nfrom hloscope.cli.main import main\n"
        f"main(['analyze', {path!r}, '--json', '/dev/null'])\n"
        "print('THREADS', len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    plain = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=plain | given,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert f"THREADS 1 {left}" in done.stdout


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
    assert "v2:2x2" in out


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


def test_stages_of_compiles_side_by_side_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    from hloscope.capture import Event

    with progress(quiet=False) as on_event:
        assert on_event is not None
        on_event(Event(stage="compile", seconds=2.0, number=3))
        on_event(Event(stage="compile", seconds=1.0))
    assert capsys.readouterr().err == "[   2.0 s] 3: compiling\n[   1.0 s] compiling\n"


def test_an_ascii_terminal_gets_ascii(shared_dump: Callable[[str], HloFile]) -> None:
    done = process("analyze", str(shared_dump("oom").path), PYTHONIOENCODING="ascii", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "jit_step | tpu" in done.stdout


def test_closed_streams_change_no_exit_code(shared_dump: Callable[[str], HloFile]) -> None:
    oom = str(shared_dump("oom").path)
    for closed, arguments, code in (
        (">&-", [oom, "--fail-on", "HS101"], 1),
        (">&- 2>&- <&-", [oom, "--fail-on", "never"], 0),
        ("2>&-", ["nowhere.pb"], 2),
    ):
        words = shlex.join([*ANALYZE, *arguments])
        done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, check=False, timeout=60)
        assert done.returncode == code
        assert b"Traceback" not in done.stdout + done.stderr


def test_names_are_written_in_any_encoding(tmp_path: Path) -> None:
    (tmp_path / "é日.py").touch()
    text = tmp_path / "m.txt"
    text.write_text(
        "HloModule m\n\nENTRY %e (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        '  ROOT %c = f32[8]{0} custom-call(%p), custom_call_target="xla_python_cpu_callback", '
        'metadata={op_name="jit(m)/c" source_file="é日.py" source_line=3}\n}\n',
        encoding="utf-8",
    )
    for encoding in ("ascii", "latin-1", "utf-8"):
        for form in ("junit", "github"):
            command = [*HLOSCOPE, "check", str(text), "--format", form, "--select", "HS505"]
            environment = {**os.environ, "PYTHONIOENCODING": encoding}
            done = subprocess.run(
                command, capture_output=True, check=False, timeout=60, env=environment, cwd=tmp_path
            )
            assert (done.returncode, done.stderr) == (1, b"failed: HS505 reached --fail-on\n")
            said = "".join(ET.fromstring(done.stdout).itertext()) if form == "junit" else done.stdout.decode()
            assert "é日" in said


def test_a_name_is_no_command_of_a_workflow(
    shared_dump: Callable[[str], HloFile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = protos.HloProto(hlo_module=shared_dump("oom").module.proto)
    proto.hlo_module.name = "::error::owned##[error]x"
    (tmp_path / "m.hlo.pb").write_bytes(proto.SerializeToString())
    assert main(["analyze", str(tmp_path / "m.hlo.pb")]) == 0
    out = capsys.readouterr().out
    assert "owned" in out
    assert not any(line.strip().startswith("::") or "##[" in line for line in out.splitlines())
    (tmp_path / "m.txt").write_text("HloModule m\n\nENTRY %e {\n::add-mask::a\n}\n")
    assert main(["analyze", str(tmp_path / "m.txt")]) == 2
    err = capsys.readouterr().err
    assert "add-mask" in err
    assert not any(line.strip().startswith("::") for line in err.splitlines())


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


def test_ctrl_c_while_the_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(context: typer.Context) -> None:
        raise KeyboardInterrupt

    assert app.registered_callback is not None
    monkeypatch.setattr(app.registered_callback, "callback", interrupted)
    assert main(["topologies"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_ctrl_c_is_answered_from_the_start(tmp_path: Path) -> None:
    """The first tenths of a second go by before there is a command to interrupt."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "hloscope", "rules"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


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
