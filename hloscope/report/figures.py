"""Small drawings in a line of text: a bar and a curve."""

from __future__ import annotations

from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"


def bar(parts: Sequence[int], whole: int, width: int) -> str:
    """Parts of a whole side by side, each in its own shade, the rest of the whole light.

    What is more than the whole fills the bar. A part that is not nothing is seen.
    """
    whole = max(whole, sum(parts), 1)
    text, done = "", 0
    for shade, part in zip("█▓" * len(parts), parts, strict=False):
        done += part
        end = round(width * done / whole)
        text += shade * max(end - len(text), 1 if part and len(text) < width else 0)
    return text + "░" * (width - len(text))


def curve(points: Sequence[tuple[int, int]], width: int) -> str:
    """A step function, given by (position, value) in order, as the maxima of `width` stretches.

    Zero is the floor.
    """
    if not points:
        return ""
    start, end = points[0][0], points[-1][0] + 1
    width = min(width, end - start)
    maxima = [0] * width
    before = points[0][1]
    reached = 0
    for position, value in points:
        at = (position - start) * width // (end - start)
        # What was live before reaches into this stretch, unless the change comes at its very beginning.
        begins = start - (-at * (end - start) // width)
        for carried in range(reached + 1, at + (position > begins)):
            maxima[carried] = before
        maxima[at] = max(maxima[at], value)
        reached, before = at, value
    top = max(maxima) or 1
    return "".join(_LEVELS[min(len(_LEVELS) - 1, max(0, value) * len(_LEVELS) // top)] for value in maxima)
