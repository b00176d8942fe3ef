"""The skeleton of a rule is a rule: it passes its own test, the linters and what holds for all rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("new-rule", "big-copy", "--code", "acme101")
    assert (code, err) == (0, "")
    assert 'big_copy = "acme101_big_copy"' in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["acme101_big_copy.py", "test_acme101_big_copy.py"]
    return tmp_path


def in_folder(folder: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_own_test_and_the_linters(made: Path) -> None:
    in_folder(made, "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    settings = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    in_folder(made, "ruff", "check", *settings, "--ignore", "D,INP", ".")
    in_folder(made, "ruff", "format", *settings, "--check", ".")
    strict = {"typeCheckingMode": "strict", "include": ["acme101_big_copy.py"], "extraPaths": [str(ROOT)]}
    (made / "pyrightconfig.json").write_text(json.dumps(strict))
    in_folder(made, "pyright", "--pythonpath", sys.executable)


def test_it_is_as_every_rule_must_be(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(made))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "rules"))
    import test_catalogue  # pyright: ignore[reportMissingImports]
    from acme101_big_copy import big_copy  # pyright: ignore[reportMissingImports]

    test_catalogue.check_documented(big_copy)


def test_in_the_project_itself_it_has_its_places(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules" / "hloscope_rules").mkdir(parents=True)
    (tmp_path / "tests" / "rules").mkdir(parents=True)
    code, out, _ = run("new-rule", "big-copy", "--code", "HS598")
    assert code == 0
    assert "make rule-docs" in out
    test = (tmp_path / "tests" / "rules" / "test_hs598_big_copy.py").read_text()
    assert "from hloscope_rules.hs598_big_copy import big_copy" in test
    assert (tmp_path / "rules" / "hloscope_rules" / "hs598_big_copy.py").is_file()


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("Big", "ACME101", "'Big' is no rule name"),
        ("big-copy", "ACME1", "'ACME1' is no rule code"),
        ("big-copy", "HS101", "there is a rule HS101 full-buffer-fusion already"),
        ("big-copy", "HS998", "HS is for hloscope's own rules"),
        ("full-buffer-fusion", "ACME101", "there is a rule HS101 full-buffer-fusion already"),
    ],
)
def test_what_is_refused(name: str, code: str, message: str, run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    exit_code, _, err = run("new-rule", name, "--code", code)
    assert exit_code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(made: Path, run: Run) -> None:
    (made / "acme101_big_copy.py").unlink()
    code, _, err = run("new-rule", "big-copy", "--code", "ACME101")
    assert (code, err) == (2, "error: there is a file test_acme101_big_copy.py already\n")
    assert not (made / "acme101_big_copy.py").exists()
