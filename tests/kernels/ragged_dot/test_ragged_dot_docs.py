"""The user's page: its examples run, and it says what the table says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hloscope_kernels.ragged_dot.choose import IMPLEMENTATIONS

PAGE = (Path(__file__).parents[3] / "docs" / "ragged_dot.md").read_text(encoding="utf-8")


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)  # noqa: S102
    here, v6e = capsys.readouterr().out.split("result: ")[1:]
    assert here.startswith("xla: nothing was compared on cpu")
    assert v6e.startswith("pallas_tpu: ")


def test_every_implementation_is_described() -> None:
    for implementation in IMPLEMENTATIONS[1:]:
        assert f"| `{implementation}` |" in PAGE
