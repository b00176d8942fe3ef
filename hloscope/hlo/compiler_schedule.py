"""What the compiler's latency-hiding scheduler wrote of its own estimate: the clock, and where it expects to wait.

The dump holds one computation, the entry, as it stood before the last passes: the order of the module itself is the
one that runs. Its times are the scheduler's, from crude costs of collectives; only the clock is a fact.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from hloscope.errors import UserError

_STATISTICS = re.compile(r"^  scheduler_statistics \{\n(?P<fields>(?:    .*\n)*)  \}$", re.MULTILINE)
_FIELD = re.compile(r"^    (?P<name>\w+)_cycles: (?P<cycles>[\d.e+-]+)$", re.MULTILINE)
_CLOCK = re.compile(r"^ *cycles_per_microsecond: (?P<cycles>[\d.e+-]+)$", re.MULTILINE)
_HERTZ = 1e6
_LARGEST = 2**30  # characters; real ones have some tens of millions


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSchedule:
    """`clock_hz` is the clock that the scheduler counts with, `seconds` the entry's length and `waits` the seconds in
    which it waits, by what it waits for (`all_gather`), the longest first; a loop in the entry counts as one piece."""

    clock_hz: float
    seconds: float
    waits: dict[str, float]


def read_schedule(path: Path) -> CompilerSchedule | None:
    """Read a `*.schedule.txt`, gzip. None where it is not in the known form. Raises UserError."""
    try:
        with gzip.open(path, "rt", errors="replace") as file:
            text = file.read(_LARGEST)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read the scheduler's record in {path}: {error}") from error
    # What stands before is the module, by far the longer part.
    _, mark, tail = text.partition("\ncomputation_schedules {")
    statistics, clock = _STATISTICS.search(tail), _CLOCK.search(tail)
    if not mark or statistics is None or clock is None:
        return None
    try:
        hertz = float(clock["cycles"]) * _HERTZ
        fields = {f["name"]: float(f["cycles"]) for f in _FIELD.finditer(statistics["fields"])}
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    total = fields.pop("total", None)
    if not hertz > 0 or total is None:
        return None
    waits = {
        name.removesuffix("_wasted"): cycles / hertz
        for name, cycles in fields.items()
        if name.endswith("_wasted") and name != "total_wasted"
    }
    return CompilerSchedule(
        clock_hz=hertz,
        seconds=total / hertz,
        waits=dict(sorted(waits.items(), key=lambda item: (-item[1], item[0]))),
    )
