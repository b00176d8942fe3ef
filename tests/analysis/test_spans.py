"""Loops that a buffer only waits for."""

from __future__ import annotations

import random

from hloscope.analysis.spans import Starts


def test_the_first_loop_to_end_is_found_whatever_way_loops_stand() -> None:
    """Also where loops share a body, so that one seems to begin before what runs ahead of it."""
    chosen = random.Random(0)
    for _ in range(200):
        loops = [(b, b + chosen.randint(0, 9)) for b in (chosen.randint(0, 9) for _ in range(4))]
        starts = Starts(loops)
        for position in range(-1, 11):
            ends = [end for begin, end in loops if begin > position]
            assert starts.end_after(position) == min(ends, default=float("inf"))
