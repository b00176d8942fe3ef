"""Whether a file is HLO text: apart from its reader, which nobody should wait for to read a proto."""

from __future__ import annotations

import re

# How text begins, after comments: with `HloModule name`, or (by hand) with a computation and its first
# instruction.
_COMMENTS = rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*+|/\*.*?\*/)*+"
_MODULE = re.compile(_COMMENTS + rb"HloModule\s", re.DOTALL)
_COMPUTATION = re.compile(
    _COMMENTS
    + rb"(?:ENTRY\s++)?%?[\w.\-]++\s*+(?:\([^\n{]*+(?:\{[\d,:][^\n{]*+)*+)?\{"
    + _COMMENTS
    + rb"(?:ROOT\s++)?%?[\w.\-]++\s*+=\s",
    re.DOTALL,
)


def is_text(data: bytes) -> bool:
    """Whether a file that begins like this is HLO text."""
    return _MODULE.match(data) is not None or _COMPUTATION.match(data) is not None
