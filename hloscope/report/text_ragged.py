"""The ragged buffers: packed rows of grouped matmuls, how many of them hold tokens, what streams all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from hloscope.analysis.ragged import ValidRows, kernel_names
from hloscope.report.model import Ragged
from hloscope.report.tables import Column, table
from hloscope.report.terminal import cut, indented, joined, words
from hloscope.units import UNKNOWN, count, plural, share

_COLUMNS = (
    Column(title="rows", right=True),
    Column(title="groups", right=True),
    Column(title="n", right=True),
    Column(title="kernels", shrinks=True, most=50),
    Column(title="hold tokens", right=True, style="bold"),
    Column(title="streamed in full by", shrinks=True),
)
_Key = tuple[int, int, str, ValidRows]


def ragged_buffers(buffers: Sequence[Ragged], width: int) -> Iterator[RenderableType]:
    """The whole block; nothing where there are no ragged buffers."""
    if not buffers:
        return
    alike: dict[_Key, list[Ragged]] = {}
    for ragged in buffers:
        buffer = ragged.buffer
        key = (buffer.rows, buffer.groups, kernel_names(buffer), ragged.valid)
        alike.setdefault(key, []).append(ragged)
    yield words(("Ragged buffers", "bold"), ("  only the first sum(group_sizes) rows are tokens", "dim"))
    yield table(_COLUMNS, [_row(*key, same) for key, same in alike.items()], width)
    for valid in dict.fromkeys(ragged.valid for ragged in buffers):
        yield indented(words((_reason(valid), "dim")))


def _row(rows: int, groups: int, kernels: str, valid: ValidRows, same: Sequence[Ragged]) -> list[str]:
    held = UNKNOWN if valid.fraction is None else share(valid.fraction)
    return [count(rows), count(groups), count(len(same)), kernels, held, _work(same)]


def _work(same: Sequence[Ragged]) -> str:
    """`4 fusions, 1 copy`: all of them, on all the buffers."""
    roles = Counter(work.role for ragged in same for work in ragged.buffer.work)
    return joined((plural(n, role) for role, n in roles.most_common()), ", ") or "nothing"


def _reason(valid: ValidRows) -> str:
    if valid.fraction is None:
        return f"unknown: {cut(valid.reason, 200)}; --valid-fraction prices the empty rows"
    proved = "proved: " if valid.source == "proved" else ""
    nothing = ": every row is a token, nothing is wasted" if valid.fraction == 1 else ""
    return f"{share(valid.fraction)}, {proved}{cut(valid.reason, 200)}{nothing}"
