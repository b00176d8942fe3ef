"""The user's page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "row_kernels.md"


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})  # noqa: S102
    assert capsys.readouterr().out == "(512, 512)\n(512, 512)\n"
