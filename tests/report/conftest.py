"""A report whose every name was written by somebody who means harm; and a browser to open reports in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hloscope.hlo import HloFile, protos
from hloscope.report.build import load
from hloscope.report.model import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_MARKUP = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&amp;</style>[red]markup[/red]"
)
EVIL = f"\x1b]0;owned\x07\x1b[2J{_MARKUP}\u202egnp\u2066\r\n\x9b31m\u200f"


@pytest.fixture
def hostile(hostile_file: Path) -> Report:
    """The report of `hostile_file`."""
    return load(hostile_file)


@pytest.fixture
def hostile_file(shared_dump: Callable[[str], HloFile], tmp_path: Path) -> Path:
    """The small module with a name of 10,000 characters on everything that a name can be put on."""
    file = shared_dump("oom")
    proto = protos.HloProto.FromString(file_bytes(file))
    module = proto.hlo_module
    module.name = EVIL + "x" * 10_000
    for computation in module.computations:
        computation.name = EVIL + computation.name
        for instruction in computation.instructions:
            instruction.name = f"{EVIL}{instruction.name}" + "y" * 10_000
            instruction.metadata.op_name = instruction.metadata.op_name + "/" + EVIL + "z" * 10_000
    names = module.stack_frame_index.file_names
    for i, name in enumerate(list(names)):
        names[i] = f"/{EVIL}/" + "w" * 10_000 + name + EVIL
    path = tmp_path / "evil.hlo.pb"
    path.write_bytes(proto.SerializeToString())
    return path


def file_bytes(file: HloFile) -> bytes:
    proto = protos.HloProto(hlo_module=file.module.proto)
    if file.buffer_assignment is not None:
        proto.buffer_assignment.CopyFrom(file.buffer_assignment)
    return proto.SerializeToString()


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
