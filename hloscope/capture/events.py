"""What a capture tells while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Stage = Literal["start", "import", "build", "rewrite", "trace", "lower", "compile", "store", "done", "failed"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A stage begins. `seconds` since the capture began; `detail` is a few words for a person, or empty.

    `done` has the detail `compiled`, `cached`, or `failed` for a failure that is known from before; a stored step
    goes from `lower` to `done` without compiling. `number` tells captures apart that run side by side.
    """

    stage: Stage
    seconds: float
    detail: str = ""
    number: int | None = None
