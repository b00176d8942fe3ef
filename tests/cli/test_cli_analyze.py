from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def one_error_line(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1


def test_a_report_on_standard_output(run: Run, dense: Path) -> None:
    code, out, err = run("analyze", dense)
    assert (code, err) == (0, "")
    assert out.startswith("jit_train_step · ")
    assert "Memory per device" in out
    assert "\x1b" not in out


def test_json_alone_on_standard_output(run: Run, dense: Path) -> None:
    code, out, err = run("analyze", dense, "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["memory"]["total_bytes"] == 1271377728


def test_json_in_a_file_beside_the_text(run: Run, dense: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("an older report")
    file.chmod(0o640)
    code, out, _ = run("analyze", dense, "--json", file)
    assert code == 0
    assert "Memory per device" in out
    assert json.loads(file.read_text())["schema_version"] == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_a_new_json_file_has_the_usual_mode(run: Run, dense: Path, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        assert run("analyze", dense, "--json", tmp_path / "r.json")[0] == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o640


def test_json_through_a_link(run: Run, dense: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "r.json")
    assert run("analyze", dense, "--json", link)[0] == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "real" / "r.json").read_text())


def test_json_into_a_device(run: Run, dense: Path) -> None:
    assert run("analyze", dense, "--json", "/dev/null")[0] == 0
    code, _, err = run("analyze", dense, "--json", "/dev/full")
    assert (code, err) == (2, "error: cannot write the JSON report to /dev/full: No space left on device\n")


@pytest.mark.parametrize("place", ["nowhere/r.json", ".", ""])
def test_json_that_cannot_be_written_fails_before_the_compile(
    place: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hloscope.capture.launch.capture_step", lambda *_, **__: pytest.fail("compiled"))  # pyright: ignore
    code, out, err = run("analyze", "step.py", "--json", place)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot write the JSON report to {place}: ")
    assert one_error_line(err)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_leaves_the_older_report(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("an older report")
    assert run("analyze", tmp_path / "nowhere.pb", "--json", file)[0] == 2
    assert file.read_text() == "an older report"
    assert len(list(tmp_path.iterdir())) == 1


def test_exit_code_1_for_findings(run: Run, oom: Path, dense: Path) -> None:
    assert run("analyze", oom)[0] == 0
    assert run("analyze", oom, "--fail-on", "warning")[0] == 1
    assert run("analyze", oom, "--fail-on", "HS101")[0] == 1
    assert run("analyze", oom, "--fail-on", "HS201")[0] == 0
    assert run("analyze", oom, "--fail-on", "info", "--select", "HS201")[0] == 0
    assert run("analyze", dense, "--fail-on", "info", "--select", "HS1")[0] == 0


def test_exit_code_1_for_budgets(run: Run, dense: Path) -> None:
    assert run("analyze", dense, "--budget", "arena=1GiB")[0] == 0
    code, out, _ = run("analyze", dense, "--budget", "arena=900MiB", "--budget", "total=2GiB")
    assert code == 1
    assert "exceeded by 44.7 MiB" in out
    code, out, _ = run("analyze", dense, "--budget", "arena=900MiB", "--json", "-")
    assert code == 1
    assert json.loads(out)["budgets"] == [
        {
            "name": "arena",
            "unit": "bytes",
            "limit": 900 * 2**20,
            "actual": 990543904,
            "exceeded": True,
            "note": None,
        }
    ]


def test_a_budget_on_the_unknown_is_no_silent_pass(run: Run, dense: Path) -> None:
    code, _, err = run("analyze", dense, "--budget", "temp=1TiB")
    assert code == 2
    assert "the budget on temp cannot be checked: temp is unknown here (no dump holds it" in err
    assert one_error_line(err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("analyze", "x", "--bogus"),
        ("analyze", "x", "--valid-fraction", "abc"),
        ("analyze", "x", "--valid-fraction", "0"),
        ("analyze", "x", "--valid-fraction", "1.01"),
        ("analyze", "x", "--valid-fraction", "nan"),
        ("analyze", "x", "--timeout", "0"),
        ("analyze", "x", "--timeout", "nan"),
        ("analyze", "x", "--budget", "temp"),
        ("analyze", "x", "--fail-on", "fatal"),
        ("analyze", "x", "--select", "nonsense"),
        ("analyze", "step.py", "--module", "m"),
        ("analyze", "nowhere.py"),
        ("analyze", "nowhere"),
        ("explain", "HS999"),
        ("explain",),
        ("bogus",),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert one_error_line(err), err


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.pb", b"", "is empty"),
        ("garbage.hlo.pb", bytes(range(256)) * 20, "is no HLO module"),
        ("zeros.hlo.pb", bytes(1000), "is no HLO module"),
        ("header.gz", b"\x1f\x8b", "is no HLO module"),
        ("garbage.gz", b"\x1f\x8b" + bytes(range(256)), "is a damaged gzip file"),
        ("bomb.gz", gzip.compress(bytes(1 << 24)) * 200, "is no HLO module"),
        ("text.txt", b"HloModule jit_step\n", "text.txt, line 2, column 1: the module has no computations"),
        ("step.mlir", b"module @jit_step {\n", "is StableHLO"),
    ],
)
def test_files_that_hold_no_module(name: str, data: bytes, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    code, out, err = run("analyze", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in err
    assert one_error_line(err)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999])
def test_truncated_files(share: float, run: Run, oom: Path, tmp_path: Path) -> None:
    packed = oom.read_bytes()
    for name, data in (("m.hlo.pb.gz", packed), ("m.hlo.pb", gzip.decompress(packed))):
        (tmp_path / name).write_bytes(data[: int(share * len(data))])
        code, out, err = run("analyze", tmp_path / name)
        assert (code, out) == (2, "")
        assert one_error_line(err)


def test_an_unreadable_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.pb"
    file.write_bytes(b"x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.chdir(tmp_path)  # where no settings are to be read
    # Taking the permission away would not keep root from reading.
    monkeypatch.setattr(Path, "open", refuse)
    assert run("analyze", file) == (2, "", f"error: cannot read {file}: Permission denied\n")


def test_a_dump_folder(run: Run, dense: Path, oom: Path, tmp_path: Path) -> None:
    shutil.copy(oom, tmp_path / "module_0001.jit_step.cl_1.after_optimizations.hlo.pb.gz")
    assert run("analyze", tmp_path)[1].startswith("jit_step · ")
    shutil.copy(dense, tmp_path / "module_0002.jit_train_step.cl_1.after_optimizations.hlo.pb.gz")
    # The larger one, by far or not, is only taken when nothing else was asked for.
    assert run("analyze", tmp_path, "--module", "jit_step")[1].startswith("jit_step · ")
    code, _, err = run("analyze", tmp_path, "--module", "jit")
    assert code == 2
    assert "module_0002.jit_train_step (952.1 KiB), module_0001.jit_step (239.3 KiB)" in err


def test_hbm_of_the_chip(run: Run, oom: Path) -> None:
    out = run("analyze", oom, "--topology", "v5e:2x4")[1]
    assert "of 15.8 GiB usable HBM" in out
    code, _, err = run("analyze", oom, "--topology", "v5litepod")
    assert (code, err) == (
        3,
        "error: the step does not fit: it needs 24.4 GiB of device memory (HBM), "
        "a program may have 15.8 GiB on v5litepod\n",
    )
    assert run("analyze", oom, "--topology", "v5p:2x2x1")[0] == 0
    assert run("analyze", oom, "--topology", "h100:8")[0] == 2


def test_text_that_does_not_parse_is_shown_with_a_mark(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    path.write_text("HloModule m\n\nENTRY %e {\n  ROOT %b = f32[4]{0} add(%a, %a)\n}\n")
    code, out, err = run("analyze", path)
    assert (code, out) == (2, "")
    error, line, mark = err.splitlines()
    assert "line 4, column" in error
    assert line.strip() == "ROOT %b = f32[4]{0} add(%a, %a)"
    assert mark.strip() == "^"


def test_selected_and_ignored_leaves_nothing_to_run(run: Run, dense: Path) -> None:
    code, out, err = run("analyze", dense, "--select", "HS101,HS2", "--ignore", "HS1,HS2")
    assert (code, out) == (2, "")
    assert err == "error: no rule is left to run: HS101, HS2 selected, HS1, HS2 ignored\n"
