"""Shares as they are typed: `2%` or `0.02`."""

from __future__ import annotations

import math
import re

from hloscope.errors import UserError

_SHARE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(\s*%)?", re.ASCII)


def parse_share(text: str) -> float:
    """What `--tolerance` takes as a share, 0 to 1. Raises UserError for what is none."""
    found = _SHARE.fullmatch(text.strip())
    value = math.nan if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 <= value <= 1:
        raise UserError(f"--tolerance takes a share such as 2% or 0.02, not {text!r}")
    return value
