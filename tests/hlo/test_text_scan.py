"""Brackets of HLO text."""

from __future__ import annotations

import pytest

from hloscope.hlo.text_scan import MalformedError, group_end


@pytest.mark.parametrize("depth", range(9))
@pytest.mark.parametrize("inside", ["", "x, y", '")"', r'"\")"', "'}'", "[0]"])
def test_the_end_of_brackets_of_any_depth(depth: int, inside: str) -> None:
    kinds = ["()", "[]", "{}"] * 3
    opened = "".join(kind[0] + "a" for kind in kinds[: depth + 1])
    closed = "".join("b" + kind[1] for kind in reversed(kinds[: depth + 1]))
    group = opened + inside + closed
    assert group_end(f"..{group})]}}", 2) == 2 + len(group)
    with pytest.raises(MalformedError, match="not closed"):
        group_end(group[:-1], 0)
    with pytest.raises(MalformedError, match=r"does not match|not closed"):
        group_end(group[:-1] + "?", 0)
