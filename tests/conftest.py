"""Shared fixtures: real compiled modules, read once per session."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hostile import write_hostile

from hloscope.hlo import HloFile, read_hlo
from hloscope.report.build import load
from hloscope.report.model import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A shell that runs the tests in the background ignores SIGINT, and so would every process that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = Path(__file__).parent / "data"

PLACES = {
    "dense": DATA / "qwen3_0p6b_dense.hlo.pb.gz",
    "qwen3_30b": DATA / "qwen3_30b.hlo.pb.gz",
    "deepseek": DATA / "deepseek3_671b.hlo.pb.gz",
    "oom": DATA / "oom_toy_moe.hlo.pb.gz",
    "qwen35_397b": DATA / "qwen35_397b.hlo.pb.gz",
    # examples/moe_train_step.py for tpu7x:2x2x1, by the two versions of jax and libtpu in constraints.txt.
    "moe_jax010": DATA / "moe_step_jax010.hlo.pb.gz",
    "moe_jax012": DATA / "moe_step_jax012.hlo.pb.gz",
}


def dump_path(name: str) -> Path:
    """The file of a real module."""
    return PLACES[name]


@cache
def _read(name: str) -> HloFile:
    return read_hlo(PLACES[name])


@pytest.fixture(scope="session")
def shared_dump() -> Callable[[str], HloFile]:
    """Reads a real module by its short name: dense, qwen3_30b, deepseek, oom, qwen35_397b."""

    def load(name: str) -> HloFile:
        return _read(name)

    return load


@pytest.fixture(scope="session")
def dump_file() -> Callable[[str], Path]:
    """The file of a real module by its short name."""
    return dump_path


@pytest.fixture(autouse=True, scope="session")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of their own for every session, so that each step is compiled once in it, and never before."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HLOSCOPE_CACHE", str(folder))
        yield folder


@pytest.fixture
def hostile_file(shared_dump: Callable[[str], HloFile], tmp_path: Path) -> Path:
    """The small module with hostile names."""
    return write_hostile(shared_dump("oom"), tmp_path / "evil.hlo.pb")


@pytest.fixture
def hostile(hostile_file: Path) -> Report:
    """The report of `hostile_file`."""
    return load(hostile_file)


# As root there is no sandbox; the rest keeps the browser from calling home.
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs chromium: .ci/run installs it")
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()
