"""Shared fixtures: real compiled modules, read once per session."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from hloscope.hlo import HloFile, read_hlo

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
