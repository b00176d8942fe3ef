"""Everything that can go wrong says so in one line, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hloscope import load
from hloscope.capture import Artifact, capture_step
from hloscope.cli.main import main
from hloscope.errors import CompileError, UserError

WriteStep = Callable[..., str]

BUILDER = """
    @hs.step(topology="v5e:2x4")
    def broken(topology):
        {body}
"""


def message(target: str, kind: type[Exception] = UserError, **options: object) -> str:
    with pytest.raises(kind) as caught:
        capture_step(target, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


def children() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "ppid=,args="], capture_output=True, text=True, check=True)
    own = [line.split(maxsplit=1) for line in listed.stdout.splitlines()]
    return [args for parent, args in own if int(parent) == os.getpid() and "hloscope" in args]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(store_folder: Path):
    yield
    assert children() == []
    assert list((store_folder / "staging").glob("*")) == []


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert message(str(tmp_path / "no.py")) == f"there is no file {tmp_path}/no.py"
    assert "is a folder" in message(str(tmp_path))


def test_syntax_error(write_step: WriteStep) -> None:
    path = write_step("x = 1\ndef f(:\n", header="")
    assert message(path) == f"SyntaxError: invalid syntax ({path}:2)"


def test_a_file_that_is_no_text(write_step: WriteStep) -> None:
    assert (
        message(write_step("x = '\0'", header=""))
        == "SyntaxError: source code string cannot contain null bytes"
    )


def test_error_while_importing(write_step: WriteStep) -> None:
    path = write_step('\n\nraise ValueError("first\\n  second")', header="")
    assert message(path) == f"ValueError: first second ({path}:3)"


def test_missing_module(write_step: WriteStep) -> None:
    path = write_step("import no_such_module", header="")
    assert message(path) == f"ModuleNotFoundError: No module named 'no_such_module' ({path}:1)"


def test_file_that_exits(write_step: WriteStep) -> None:
    path = write_step("import hloscope as hs, sys\nhs.step\nsys.exit(3)", header="")
    assert message(path) == f"the file ended itself: SystemExit(3) ({path}:3)"
    path = write_step("import os\nos._exit(0)", header="")
    assert message(path) == "the file ended the process during import, before the step was compiled"


def test_no_step(write_step: WriteStep) -> None:
    path = write_step("import hloscope as hs\nhs.step\ndef train_step(topology): ...", header="")
    assert message(path) == f"{path}: no function in it is marked @hs.step (import hloscope as hs)"
    path = write_step("def train_step(topology): ...", header="")
    assert message(path) == (
        f"{path}: no function is marked @hs.step, and as a script it called and compiled no jax.jit function "
        "(jax.pmap, jax.shard_map outside of jax.jit and other processes are not seen)"
    )


def test_several_steps(write_step: WriteStep) -> None:
    path = write_step(
        "import hloscope as hs\n@hs.step\ndef dense(t): ...\n@hs.step(name='sparse')\ndef b(t): ...",
        header="",
    )
    assert message(path) == f"{path} has several steps: dense, sparse; choose one as {path}:NAME"
    assert message(f"{path}:b") == f"{path}: no step is named 'b'; it has dense, sparse"
    assert "name is missing" in message(f"{path}:")


def test_imported_steps_do_not_count_beside_own(write_step: WriteStep) -> None:
    write_step("import hloscope as hs\n@hs.step\ndef other(t): ...", header="", name="library.py")
    path = write_step(
        "from library import other\nimport hloscope as hs\n@hs.step\ndef own(t): return 1", header=""
    )
    assert message(path, topology="v5e:2x2") == "own must return an hs.Step, it returned int"
    assert (
        message(f"{path}:other", topology="v5e:2x2") == "other must return an hs.Step, it returned NoneType"
    )


def test_builder_that_returns_something_else(write_step: WriteStep) -> None:
    path = write_step(BUILDER.format(body="return 3"))
    assert message(path) == "broken must return an hs.Step, it returned int"


def test_error_while_tracing(write_step: WriteStep) -> None:
    path = write_step("""
        def step(x):
            return x @ jnp.ones((3, 3))

        @hs.step(topology="v5e:2x4")
        def broken(topology):
            return hs.Step(step, args=(shaped(topology, (8, 8)),))
    """)
    line = 1 + Path(path).read_text().splitlines().index("    return x @ jnp.ones((3, 3))")
    with pytest.raises(UserError) as caught:
        capture_step(path)
    assert str(caught.value).startswith("TypeError: dot_general requires contracting dimensions")
    assert str(caught.value).endswith(f"({path}:{line})")
    # The whole traceback is there for who wants it.
    assert "Traceback (most recent call last)" in caught.value.__notes__[0]


def test_wrong_step_points_at_its_line(write_step: WriteStep) -> None:
    path = write_step(BUILDER.format(body="return hs.Step(print, args=(1,), donate_argnums=3)"))
    line = len(Path(path).read_text().splitlines())
    assert message(path) == f"Step: donate_argnums names argument 3, but args has 1 ({path}:{line})"


def test_arguments_off_the_topology(write_step: WriteStep) -> None:
    path = write_step(BUILDER.format(body="return hs.Step(lambda x: x, args=(jnp.ones(3),))"))
    assert message(path).startswith("no argument of the step lies on v5e:2x4: give its jax.ShapeDtypeStructs")
    path = write_step(
        BUILDER.format(body="return hs.Step(lambda x: x, args=(shaped(hs.Topology('v6e:2x2'), (8,)),))")
    )
    assert message(path).startswith("the step lies on TPU v6 lite devices, but v5e:2x4 has TPU v5 lite")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v7x:2x2x1", "unknown topology 'v7x:2x2x1': did you mean 'tpu7x:2x2x1'?"),
        ("v5litepod-8", "unknown topology 'v5litepod-8': did you mean 'v5e:2x4'?"),
        ("v5e:3x5", "libtpu does not take the topology 'v5e:3x5'"),
        ("v5e:0x4", "libtpu does not take the topology 'v5e:0x4': a dimension is zero"),
        ("cpu:8", "cpu:8 is for running, not for compiling"),
    ],
)
def test_wrong_topology(name: str, said: str, train_file: str) -> None:
    assert message(train_file, topology=name).startswith(said)


@pytest.mark.tpu_compile
def test_refused_compiler_option(write_step: WriteStep) -> None:
    path = write_step(
        BUILDER.format(
            body="return hs.Step(lambda x: x, args=(shaped(topology, (8,)),), compiler_options={'xla_no': 1})"
        )
    )
    assert message(path) == "the compiler refuses a compiler option: No such compile option: 'xla_no'"


@pytest.mark.tpu_compile
def test_out_of_memory_keeps_the_module(write_step: WriteStep, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_step("""
        def step(x):
            y = jnp.sin(x @ x.T)
            return (y @ y).sum()

        @hs.step(topology="v5e:2x4")
        def huge(topology):
            return hs.Step(step, args=(shaped(topology, (200_000, 1024)),))
    """)
    with pytest.raises(CompileError) as caught:
        capture_step(path)
    assert str(caught.value).startswith("the step does not fit: it needs 74.")
    assert str(caught.value).endswith("GiB of device memory (HBM), there are 15.75 GiB")
    assert "RESOURCE_EXHAUSTED" in caught.value.log_tail
    assert caught.value.dump_dir is not None
    failed = Artifact.load(Path(caught.value.dump_dir))
    assert (failed.status, failed.error, failed.module_name) == ("failed", str(caught.value), "jit_step")
    assert b"jit_step" in failed.hlo_path.read_bytes()[:200]
    assert failed.hbm_limit_bytes == round(15.75 * 2**30)
    assert failed.memory_stats is None
    assert not any("Ran out of memory" in warning for warning in failed.warnings)
    report = load(failed.path)
    assert (report.target.status, report.target.error) == ("failed", str(caught.value))
    assert report.overrun is not None
    assert report.overrun.limit_bytes == failed.hbm_limit_bytes
    assert report.overrun.excess_bytes > 50 << 30
    # The compiler's word on the step is kept as a compile that worked would be.
    stages: list[str] = []
    with pytest.raises(CompileError) as again:
        capture_step(path, on_event=lambda event: stages.append(event.stage))
    assert "compile" not in stages
    told = [(str(e.value), e.value.log_tail, e.value.dump_dir) for e in (again, caught)]
    assert told[0] == told[1]
    with pytest.raises(CompileError):
        capture_step(path, fresh=True, on_event=lambda event: stages.append(event.stage))
    assert "compile" in stages
    assert main(["analyze", path]) == 3
    out, err = capsys.readouterr()
    assert "failed to compile before, taken from the store" in err
    assert err.splitlines()[-1].startswith("error: the step does not fit: it needs 74.")
    lines = out.splitlines()
    assert any("total" in line and line.endswith("59.2 GiB too much") for line in lines)
    # The product, with its line, is what fills the memory, and a rule says what would bring it down.
    largest = next(line for line in lines if line.lstrip().startswith("step dot general "))
    number = 1 + next(n for n, line in enumerate(Path(path).read_text().splitlines()) if "x @ x.T" in line)
    assert "bf16[200000,200000]   74.5 GiB" in largest
    assert largest.endswith(f"steps.py:{number}")
    over = lines.index("59.2 GiB too much  findings about what is alive at the peak")
    assert lines[over + 1].startswith("  HS308  74.5 GiB  bf16[200000,200000] dominates the peak")


def test_abort(write_step: WriteStep) -> None:
    path = write_step(BUILDER.format(body="print('my last words'); os.abort()"))
    with pytest.raises(CompileError, match=r"^the worker died of SIGABRT during build$") as caught:
        capture_step(path)
    assert "my last words" in caught.value.log_tail
    assert caught.value.dump_dir is None
    assert caught.value.exit_code == 3


@pytest.mark.tpu_compile
def test_abort_during_the_compile_keeps_the_module(write_step: WriteStep) -> None:
    path = write_step("""
        compile_only = jax.stages.Lowered.compile

        def compile_and_abort(*args, **kwargs):
            compile_only(*args, **kwargs)
            os.abort()

        jax.stages.Lowered.compile = compile_and_abort

        @hs.step(topology="v5e:2x4")
        def dying(topology):
            return hs.Step(lambda x: x @ x, args=(shaped(topology, (512, 512), "data"),))
    """)
    with pytest.raises(CompileError, match="the worker died of SIGABRT during compile") as caught:
        capture_step(path)
    assert caught.value.dump_dir is not None
    assert Artifact.load(Path(caught.value.dump_dir)).status == "failed"
    # Whoever ended it may not do so again.
    stages: list[str] = []
    with pytest.raises(CompileError, match="the worker died of SIGABRT during compile"):
        capture_step(path, on_event=lambda event: stages.append(event.stage))
    assert "compile" in stages


def test_kill(write_step: WriteStep) -> None:
    path = write_step(BUILDER.format(body="os.kill(os.getpid(), signal.SIGKILL)"))
    assert message(path, CompileError) == (
        "the worker was killed (SIGKILL) during build: probably out of memory on this machine"
    )


def test_timeout(write_step: WriteStep) -> None:
    path = write_step("import time\ntime.sleep(600)", header="")
    said = message(path, CompileError, timeout=0.5)
    assert re.fullmatch("gave up after 0.5 s, during (start|import)", said)


def test_the_users_own_children_go_too(write_step: WriteStep, tmp_path: Path) -> None:
    path = write_step(
        f"import subprocess, pathlib\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\nraise ValueError",
        header="",
    )
    assert message(path).startswith("ValueError")
    wait_for(lambda: is_gone(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_parent(
    how: signal.Signals, write_step: WriteStep, tmp_path: Path, store_folder: Path
) -> None:
    pid_file = tmp_path / "pid"
    path = write_step(
        f"""
            import os, pathlib, time
            pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
            time.sleep(600)
        """,
        header="",
    )
    script = f"import hloscope.capture as c; c.capture_step({path!r})"
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True) as parent:
        wait_for(lambda: pid_file.exists() and pid_file.read_text() != "")
        parent.send_signal(how)
        _, said = parent.communicate(timeout=10)
    assert parent.returncode == -how
    assert ("KeyboardInterrupt" in said) == (how == signal.SIGINT)
    wait_for(lambda: is_gone(int(pid_file.read_text())))
    wait_for(lambda: list((store_folder / "staging").glob("*")) == [])


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A killed process whose new parent has not waited for it yet.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip().startswith("Z") or not state.stdout.strip()


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_step_without_a_topology_says_what_to_give(write_step: WriteStep) -> None:
    path = write_step(
        "@hs.step\ndef train_step(topology):\n    return None\n", header="import hloscope as hs\n"
    )
    text = "train_step names no topology to compile for: write @hs.step(topology=...) or give --topology"
    assert message(path) == text


def test_a_file_that_analyzes_itself_is_told_so(write_step: WriteStep) -> None:
    path = write_step(
        "@hs.step(topology='v5e:2x4')\ndef train_step(topology):\n    return None\n\nhs.load(__file__)\n",
        header="import hloscope as hs\n",
    )
    assert "cannot be analyzed from within itself" in message(path)


def test_a_timeout_ends_the_users_children_too(
    write_step: WriteStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    path = write_step(
        f"""
            import os, pathlib, subprocess, time
            child = subprocess.Popen(["sleep", "600"])
            pathlib.Path({str(pid) + ".new"!r}).write_text(str(child.pid))
            os.replace({str(pid) + ".new"!r}, {str(pid)!r})
            time.sleep(600)
        """,
        header="",
    )
    # Time is up when the child runs, however slow this machine is.
    clock = SimpleNamespace(monotonic=lambda: 1000.0 if pid.exists() else 0.0)
    monkeypatch.setattr("hloscope.capture.launch.time", clock)
    assert message(path, CompileError, timeout=500) == "gave up after 500 s, during import"
    wait_for(lambda: is_gone(int(pid.read_text())))


def test_sys_exit_in_traced_code_ends_it_threads_or_not(write_step: WriteStep) -> None:
    path = write_step("""
        import threading
        threading.Thread(target=time.sleep, args=(600,)).start()
        sys.excepthook = lambda *_: None

        @hs.step(topology="v5e:2x4")
        def leaving(topology):
            return hs.Step(lambda x: sys.exit(5), args=(shaped(topology, (8,)),))
    """)
    said = message(path, timeout=300)
    assert said.startswith("the code ended itself: SystemExit(5)")
    assert path in said


def test_a_hook_of_the_users_own_hides_no_error(write_step: WriteStep) -> None:
    path = write_step("import sys\nsys.excepthook = lambda *_: None\nraise ValueError('mine')", header="")
    assert message(path) == f"ValueError: mine ({path}:3)"


def test_a_full_disk(write_step: WriteStep) -> None:
    path = write_step("""
        import pathlib

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        pathlib.Path.mkdir = full

        @hs.step(topology="v5e:2x4")
        def large(topology):
            return hs.Step(lambda x: x, args=(shaped(topology, (8,), "data"),))
    """)
    assert message(path) == (
        "no room is left on the disk of the store; HLOSCOPE_CACHE names another folder for it"
    )


@pytest.mark.tpu_compile
def test_a_module_that_could_not_be_written_whole_is_not_kept(write_step: WriteStep) -> None:
    """The compiler is silent about it: kept, the half would be handed out for the step from then on."""
    body = """
        import resource

        def update(w, x):
            return w - jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)

        @hs.step(topology="v5e:2x2")
        def step(topology):
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
            return hs.Step(update, args=(shaped(topology, (512, 512)), shaped(topology, (512, 512), "data")))
    """
    with pytest.raises(CompileError, match="the module in its dump is cut short: is there a quota"):
        capture_step(write_step(body))


@pytest.mark.parametrize("flags", ["--xla_nonsense=1", "--xla_backend_optimization_level=banana"])
def test_flags_that_xla_refuses(flags: str, write_step: WriteStep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    said = message(write_step("import jax\njax.devices('cpu')", header=""))
    assert said.startswith("the compiler refuses a flag: ")
    assert flags.split("=")[0].strip("-") in said


@pytest.mark.tpu_compile
@pytest.mark.parametrize("flags", ["--xla_nonsense=1", "--xla_tpu_scoped_vmem_limit_kib=banana"])
def test_flags_that_libtpu_refuses(flags: str, train_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBTPU_INIT_ARGS", flags)
    said = message(train_file)
    assert said.startswith("the compiler refuses a flag: ")
    assert flags.split("=")[0].strip("-") in said


def test_without_libtpu(train_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libtpu.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # jax tells where it found libtpu, once it is imported into this process.
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    assert message(train_file) == "libtpu is not installed; pip install 'jax[tpu]' to compile"


def test_two_hloscopes_that_are_ended_leave_nothing(write_step: WriteStep, tmp_path: Path) -> None:
    path = write_step("import time\ntime.sleep(600)", header="")
    command = [sys.executable, "-m", "hloscope.cli.main", "analyze", path, "--json", str(tmp_path / "r.json")]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in started:
        assert process.stderr is not None
        while "running the script" not in process.stderr.readline():
            assert process.poll() is None
    assert len(list(tmp_path.glob(".r.json*.tmp"))) == 2
    for process in started:
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGTERM
    assert list(tmp_path.glob("*.json*")) + list(tmp_path.glob(".*")) == []


@pytest.mark.tpu_compile
def test_arguments_that_nothing_places_are_told(write_step: WriteStep) -> None:
    path = write_step("""
        @hs.step(topology="v5e:2x4")
        def half(topology):
            free = {"a": jax.ShapeDtypeStruct((8, 8), jnp.bfloat16), "n": jax.ShapeDtypeStruct((), jnp.int32)}
            return hs.Step(lambda x, rest: x + rest["a"].sum(), args=(shaped(topology, (8, 8), "data"), free))
    """)
    (warning, *_) = capture_step(path).warnings
    assert warning == "no sharding is given for rest['a']: every device may get all of it"
