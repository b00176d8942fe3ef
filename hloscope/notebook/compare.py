"""`hs.diff`: what differs between two reports, before and after side by side."""

from __future__ import annotations

import os

from hloscope.report.diff import Diff, compare
from hloscope.report.diff_side import Side, read_side, side_of
from hloscope.report.model import Report

Compared = Report | str | os.PathLike[str]


def diff(before: Compared, after: Compared) -> Diff:
    """What differs between two steps: reports, or the files of JSON reports of earlier runs.

    Raises UserError for a file that holds no report.

    Examples:
        >>> import hloscope as hs
        >>> report = hs.load("tests/data/qwen3_0p6b_dense.hlo.pb.gz")
        >>> hs.diff(report, report).empty
        True
    """
    return compare(_side(before), _side(after))


def _side(given: Compared) -> Side:
    if isinstance(given, Report):
        return side_of(given.to_dict(), given.target.source)
    return read_side(os.fspath(given))
