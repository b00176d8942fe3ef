"""The examples in docstrings, run as they stand, from the repository's root."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What compiles in its examples; the others read files.
COMPILING = {"hloscope.notebook.analyze"}


def modules() -> list[str]:
    """Every module of hloscope with an example in its docstrings."""
    files = sorted((ROOT / "hloscope").rglob("*.py"))
    found = [f for f in files if re.search(r"^ +>>> ", f.read_text("utf-8"), re.MULTILINE)]
    return [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in found]


@pytest.mark.parametrize(
    "name", [pytest.param(m, marks=[pytest.mark.tpu_compile] * (m in COMPILING)) for m in modules()]
)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert not failed


def test_the_public_api_has_examples() -> None:
    wanted = (
        "hlo.module",
        "hlo.instruction",
        "notebook.compare",
        "report.build",
        "report.views",
        "rewrite.apply",
    )
    assert {f"hloscope.{name}" for name in wanted} <= {*modules()}
    assert {*modules()} >= COMPILING
