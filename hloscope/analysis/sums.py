"""Sums in which the unknown stays unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

Number = TypeVar("Number", int, float)


def total(figures: Iterable[Number | None]) -> Number | None:
    """The sum, or None where any part is unknown."""
    found = list(figures)
    return None if None in found else cast("Number", sum(cast("list[Number]", found)))


def times(runs: int | None, figure: Number | None) -> Number | None:
    """A figure of one execution for all of them; None where either is unknown."""
    return None if runs is None or figure is None else runs * figure
