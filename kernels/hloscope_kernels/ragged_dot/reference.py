"""What `ragged_dot` means, in the plainest form and in numpy's float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def ragged_dot_reference(
    lhs: Array, rhs: Array, group_sizes: Array | list[int], group_offset: int = 0
) -> NDArray[np.float64]:
    """`[m, k]` times each group's `[k, n]`: float64 `[m, n]`, zeros for rows of groups that rhs does not hold."""
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for weight, rows in zip(rhs, _rows(group_sizes, group_offset, len(rhs)), strict=True):
        out[rows] = lhs[rows].astype(np.float64) @ weight.astype(np.float64)
    return out


def contraction_reference(
    lhs: Array, rhs: Array, group_sizes: Array | list[int], group_offset: int, local_groups: int
) -> NDArray[np.float64]:
    """`[m, p]` and `[m, q]` contracted over each group's rows: float64 `[local_groups, p, q]`."""
    return np.stack(
        [
            lhs[rows].astype(np.float64).T @ rhs[rows].astype(np.float64)
            for rows in _rows(group_sizes, group_offset, local_groups)
        ]
    )


def _rows(group_sizes: Array | list[int], group_offset: int, local_groups: int) -> list[slice]:
    ends = np.cumsum(group_sizes)
    starts = ends - group_sizes
    local = slice(group_offset, group_offset + local_groups)
    return [slice(int(start), int(end)) for start, end in zip(starts[local], ends[local], strict=True)]
