"""Which of the steps that a script compiled is meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.units import size

if TYPE_CHECKING:
    from hloscope.capture.artifact import Artifact

# One of several compiled steps is meant if its module is this much larger than the next.
_DOMINATES = 4


def choose(found: Iterable[Artifact], path: str) -> Artifact:
    """The step by far the largest. `UserError`, with the choices, if there is none."""
    try:
        sizes = {a.key: a.hlo_path.stat().st_size for a in found}
    except FileNotFoundError as error:
        raise UserError(
            f"{path} compiles more than the store keeps: raise HLOSCOPE_CACHE_GIB, or choose one step as {path}:NAME"
        ) from error
    largest, *others = sorted(found, key=lambda a: -sizes[a.key])
    if not others or sizes[largest.key] >= _DOMINATES * sizes[others[0].key]:
        return largest
    told = ", ".join(f"{a.step_name} ({size(sizes[a.key])})" for a in (largest, *others))
    if {a.step_name for a in others} == {largest.step_name}:
        raise UserError(
            f"{path} compiles {largest.step_name} in {len(sizes)} ways, with other arguments or options: leave one of "
            f"them, or take the first as {path}:{largest.step_name}"
        )
    raise UserError(f"{path} compiles several steps: {told}; choose one as {path}:NAME")
