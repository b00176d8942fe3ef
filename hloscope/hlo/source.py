"""Where an instruction came from: the stack frames of the user's program, and the place in the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.hlo import protos

# A stack deeper than this is damage (a cycle), not a program.
_DEEPEST = 500
# jax, Python's own start of a script, and what of hloscope traces and changes a step on its way to the compiler.
_FOREIGN = re.compile(r"/jax/|^<frozen |(?:^|/)hloscope/(?:capture|rewrite)/\w+\.py$")


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One frame of the program that was traced. `line` is 1-based, 0 where the compiler kept none."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class StackFrames:
    """The module's FileNames / FunctionNames / FileLocations / StackFrames tables (all 1-based)."""

    def __init__(self, proto: protos.StackFrameIndex) -> None:
        self._proto = proto
        self._cache: dict[int, tuple[SourceFrame, ...]] = {}
        self._user: dict[int, SourceFrame | None] = {}
        self._locations: dict[int, SourceFrame | None] = {}

    def frames(self, frame_id: int) -> tuple[SourceFrame, ...]:
        """The stack of a frame id, innermost first; empty where the module does not have it."""
        known = self._cache.get(frame_id)
        if known is None:
            known = self._cache[frame_id] = tuple(self._walk(frame_id))
        return known

    def user_frame(self, frame_id: int) -> SourceFrame | None:
        """The innermost frame of a stack that is in the user's own code, else the innermost; None of no stack."""
        if frame_id not in self._user:
            # Most stacks are asked for this frame only, which is near their inner end.
            own = next((f for f in self._walk(frame_id) if not _FOREIGN.search(f.file)), None)
            self._user[frame_id] = own or next(self._walk(frame_id), None)
        return self._user[frame_id]

    def _walk(self, frame_id: int) -> Iterator[SourceFrame]:
        table = self._proto.stack_frames
        for _ in range(_DEEPEST):
            if not 0 < frame_id <= len(table):
                return
            frame = table[frame_id - 1]
            location = self._location(frame.file_location_id)
            if location:
                yield location
            frame_id = frame.parent_frame_id

    def _location(self, location_id: int) -> SourceFrame | None:
        if location_id not in self._locations:
            self._locations[location_id] = self._decode(location_id)
        return self._locations[location_id]

    def _decode(self, location_id: int) -> SourceFrame | None:
        locations = self._proto.file_locations
        if not 0 < location_id <= len(locations):
            return None
        at = locations[location_id - 1]
        return SourceFrame(
            _entry(self._proto.file_names, at.file_name_id),
            at.line,
            _entry(self._proto.function_names, at.function_name_id),
        )


def _entry(names: object, index: int) -> str:
    table: list[str] = names  # pyright: ignore[reportAssignmentType]
    return table[index - 1] if 0 < index <= len(table) else ""
