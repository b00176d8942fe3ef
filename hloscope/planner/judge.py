"""Whether a change is kept: it must reach its aim, and no other figure may get worse than is tolerated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hloscope.planner.candidates import ROWS_CODES
from hloscope.planner.measured import Measured, Tally
from hloscope.units import duration, size

Objective = Literal["temp", "time"]

# Recompiling one step with a harmless change moves these figures by a few tiles.
TOLERANCE = 0.005
# What the figures of the other objective may lose where the one that is wanted gains more, if nobody says else.
TRADE = 0.02
# Or this part of the share that is gained, where that is more.
_SHARE_OF_GAIN = 0.1
_MEMORY = ("temp", "arena", "peak", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Kept or not, and why, in one line."""

    kept: bool
    reason: str


def judge(
    before: Measured,
    after: Measured,
    codes: Sequence[str],
    *,
    objective: Objective,
    trade: float | None = None,
) -> Verdict:
    """Whether `after`, changed for the findings of `codes`, is kept over `before`. `trade` is the share that figures
    of the other objective may lose; None is `TRADE`, or more where much is gained."""
    if after.failed is not None:
        return Verdict(kept=False, reason=after.failed)
    if before.failed is not None:
        return Verdict(kept=True, reason="it compiles now")
    reached = _aim(before, after, codes)
    if not reached.kept:
        return reached
    worse = [w for name in (*_MEMORY, "seconds") if (w := _worse(before, after, name, objective, trade))]
    if after.copies.count > before.copies.count:
        worse.append(f"full-buffer copies {before.copies.count} → {after.copies.count}")
    if worse:
        return Verdict(kept=False, reason=f"worse: {', '.join(worse)}")
    return reached


def gain(before: Measured, after: Measured, objective: Objective) -> float:
    """The share of the objective's figure that is saved, by which alternatives are ranked; 0 if unknown."""
    names = ("temp", "arena", "total") if objective == "temp" else ("seconds", "hbm")
    for name in names:
        old, new = _value(before, name), _value(after, name)
        if old and new is not None:
            return (old - new) / old
    return 0.0


def _aim(before: Measured, after: Measured, codes: Sequence[str]) -> Verdict:
    """Whether the findings that it is for have become fewer or smaller, or whole buffers are streamed less."""
    old, new = _of(before, codes), _of(after, codes)
    streamed = _streamed(before), _streamed(after)
    words = f"{', '.join(codes)}: {_places(old)} → {_places(new)}"
    if ROWS_CODES.intersection(codes) and None not in streamed:
        words = f"full-buffer work {size(streamed[0])} → {size(streamed[1])}"
        return Verdict(kept=_less(streamed[1], streamed[0]), reason=words)
    fewer = new.count < old.count or (new.count == old.count and _less(new.bytes, old.bytes))
    return Verdict(kept=fewer, reason=words)


def _less(new: int | None, old: int | None) -> bool:
    return new is not None and old is not None and new < old


def _of(measured: Measured, codes: Sequence[str]) -> Tally:
    return sum((t for c, t in measured.findings.items() if c in codes), Tally())


def _streamed(measured: Measured) -> int | None:
    return (measured.fusions + measured.copies).bytes


def _places(tally: Tally) -> str:
    return f"{tally.count} ({size(tally.bytes)})" if tally.count else "none"


def _worse(
    before: Measured, after: Measured, name: str, objective: Objective, trade: float | None
) -> str | None:
    old, new = _value(before, name), _value(after, name)
    if old is None or new is None or old <= 0:
        return None
    growth = (new - old) / old
    wanted = (name == "seconds") == (objective == "time")
    allowed = TOLERANCE
    gained = gain(before, after, objective)
    if not wanted and gained > growth:
        allowed = max(TOLERANCE, max(TRADE, _SHARE_OF_GAIN * gained) if trade is None else trade)
    if growth <= allowed:
        return None
    if name == "seconds":
        return f"estimated step {duration(old)} → {duration(new)} ({growth:+.1%})"
    return f"{name} {size(int(old))} → {size(int(new))} ({growth:+.1%})"


def _value(measured: Measured, name: str) -> float | int | None:
    return getattr(measured, "seconds" if name == "seconds" else f"{name}_bytes")
