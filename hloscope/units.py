"""Figures and places in words: sizes in binary units, times, counts with separators, the unknown as `unknown`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.errors import UserError

if TYPE_CHECKING:
    from hloscope.hlo import SourceFrame

UNKNOWN = "unknown"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_UNITS = {unit.lower(): 1024**i for i, unit in enumerate(_BINARY[:5])} | {
    unit: 1000**i for i, unit in enumerate(("b", "kb", "mb", "gb", "tb"))
}
_LEAST = 1e-11  # seconds: what is shorter has no digits to show
_DURATIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_LEAST_SHARE = 1e-4
_TIME = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(s|ms|us|ns)\s*", re.ASCII)
_SIZE = re.compile(
    r"\s*([0-9]{1,18}(?:_[0-9]{1,18}){0,6}(?:\.[0-9]{1,9})?)\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII
)


def size(value: int | None) -> str:
    """Bytes as a person says them: `48.7 GiB`, `512 B`, `unknown`."""
    if value is None:
        return UNKNOWN
    if abs(value) < 1024:
        return f"{value} B"
    # 1023.96 MiB is 1 GiB, not 1024.0 MiB.
    power = min(int(math.log(abs(value) * 1.00005, 1024)), len(_BINARY) - 1)
    return f"{value / 1024**power:.1f} {_BINARY[power]}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `1.08 ms`, `680 us`, `12.3 s`, `unknown`. What is not zero never reads as zero."""
    if seconds is None:
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    if 0 < seconds < _LEAST:
        return f"< {duration(_LEAST)}"
    # Three digits, so 999.6 us is 1.00 ms.
    scale, unit = next((pair for pair in _DURATIONS if abs(seconds) * 1.0005 >= pair[0]), _DURATIONS[-1])
    value = seconds / scale
    digits = max(0, 2 - math.floor(math.log10(abs(value) * 1.0005))) if value else 0
    return f"{value:,.{min(digits, 2)}f} {unit}"


def count(value: int | None) -> str:
    """A count with separators: `53,434`, `unknown`."""
    return UNKNOWN if value is None else f"{value:,}"


def plural(value: int, noun: str) -> str:
    """`1 place`, `4 places`, `2 families`."""
    if value == 1:
        return f"1 {noun}"
    return f"{value:,} {noun[:-1]}ies" if noun.endswith("y") else f"{value:,} {noun}s"


def some(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: the first names of many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def percent(part: int, whole: int) -> str:
    """`60 %`; `< 1 %` of what is not nothing but rounds to it; of nothing, `unknown`."""
    if not whole:
        return UNKNOWN
    return "< 1 %" if 0 < 200 * part <= whole else f"{100 * part / whole:.0f} %"


def share(part: float) -> str:
    """A share (0 to 1) as `56 %` or `12.5 %`; what is below all of it never reads as 100 %, what is not nothing
    never as 0 %."""
    if part == 1:
        return "100 %"
    if 0 < part < _LEAST_SHARE:
        return f"< {100 * _LEAST_SHARE:g} %"
    return f"{min(100 * part, 99.9):.3g} %"


def where(source: SourceFrame | None) -> str:
    """A frame as `folder/file.py:12`, enough to know it by; empty for None."""
    return "" if source is None else "/".join(str(source).split("/")[-2:])


def parse_size(text: str) -> int:
    """`92GiB` or `1.5 TB` in bytes. `UserError` if it is no size with a unit."""
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UserError(
            f"{text!r} is no size: write a number and B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, e.g. 92GiB"
        )
    return round(float(found[1]) * unit)


def parse_seconds(text: str) -> float:
    """`5ms` or `1.2 s` in seconds. `UserError` if it is no time with a unit."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise UserError(f"{text!r} is no time: write a number and s, ms, us or ns, e.g. 5ms")
    return float(found[1]) * next(scale for scale, unit in _DURATIONS if unit == found[2])
