"""Collectives by the size of one execution: a step full of small ones waits for latency, not for links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from hloscope.analysis.collectives import Collective

Number = TypeVar("Number", int, float)

# Upper ends of the classes, in bytes: 4 KiB to 256 MiB, each 16 times the one before.
_ENDS = tuple(2**power for power in (12, 16, 20, 24, 28))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Collectives of one opcode whose payload per execution is `from_bytes` or more and below `to_bytes`.

    `count` are instructions; `executions`, `bytes` (payload), `seconds` and `latency_seconds` are of all
    executions of one step on one device. None is unknown; a `to_bytes` of None has no end.
    """

    opcode: str
    from_bytes: int
    to_bytes: int | None
    count: int
    executions: int | None
    bytes: int | None
    seconds: float | None
    latency_seconds: float | None


def size_classes(collectives: Iterable[Collective]) -> tuple[SizeClass, ...]:
    """The classes that are not empty, by opcode and size."""
    found: dict[tuple[str, int], list[Collective]] = {}
    for collective in collectives:
        place = sum(collective.payload >= end for end in _ENDS)
        found.setdefault((collective.opcode, place), []).append(collective)
    return tuple(_class(*key, found[key]) for key in sorted(found))


def _class(opcode: str, place: int, alike: list[Collective]) -> SizeClass:
    return SizeClass(
        opcode=opcode,
        from_bytes=_ENDS[place - 1] if place else 0,
        to_bytes=_ENDS[place] if place < len(_ENDS) else None,
        count=sum(c.count for c in alike),
        executions=_sum([c.executions for c in alike]),
        bytes=_sum([c.bytes for c in alike]),
        seconds=_sum([c.seconds for c in alike]),
        latency_seconds=_sum([_latency(c) for c in alike]),
    )


def _latency(collective: Collective) -> float | None:
    if collective.wire is None or collective.executions is None:
        return None
    return collective.wire.latency_seconds * collective.executions


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(values) else None
