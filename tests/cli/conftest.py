"""Running the command line in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hloscope.cli.main import main
from hloscope.hlo import HloFile

Dump = Callable[[str], HloFile]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def dense(shared_dump: Dump) -> Path:
    return shared_dump("dense").path


@pytest.fixture
def oom(shared_dump: Dump) -> Path:
    return shared_dump("oom").path


@pytest.fixture(autouse=True)
def collector_is_left_on() -> Iterator[None]:
    yield
    assert gc.isenabled()
