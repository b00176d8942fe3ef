"""The executable of a step that is in the store already, for a script that goes on working with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from hloscope.capture.compiling import stats_by_their_names

if TYPE_CHECKING:
    from hloscope.capture.artifact import Artifact


class Later:
    """Stands for an object that takes long to make: what is `known` of it is told at once, for all else it is made."""

    def __init__(self, make: Callable[[], Any], known: Mapping[str, Any]) -> None:
        self._make = make
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return self._known[name] if name in self._known else getattr(self._make(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to run, at once: the worker has no TPUs, and what is compiled for them does not run without."""
        raise RuntimeError("this was compiled for TPUs, which are not here")


def kept_executable(artifact: Artifact, compile: Callable[[], Any]) -> Later:
    """The stored step's executable, which knows its memory, what most scripts ask for, without being compiled."""
    make = cache(compile)
    known = {
        name: value
        for name, value in stats_by_their_names(artifact.memory_stats).items()
        if value is not None
    }
    memory = Later(lambda: make().memory_analysis(), known)
    return Later(make, {"memory_analysis": lambda: memory} if known else {})
