"""Names in HLO text, and the ids that they stand for."""

from __future__ import annotations

from collections.abc import Container


class Names:
    """Ids of computations by name; names of instructions, made unique over the whole module.

    What XLA prints has no name twice. Text written by hand has `p0` in every computation: later ones are
    numbered, as XLA does when it reads such text.
    """

    __slots__ = ("_computations", "_defined", "_next", "_taken", "_waiting")

    def __init__(self) -> None:
        self._computations: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self._defined: set[str] = set()
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def computation(self, name: str, at: int) -> int:
        """The id of a computation, given when its name is first met. `at` is where it is named."""
        known = self._computations.get(name)
        if known is None:
            known = self._computations[name] = len(self._computations) + 1
        if name not in self._defined:
            self._waiting.setdefault(name, at)
        return known

    def define_computation(self, name: str) -> int | None:
        """The id of a computation that is read now; None if there was one of that name."""
        if name in self._defined:
            return None
        number = self.computation(name, 0)
        self._defined.add(name)
        self._waiting.pop(name, None)
        return number

    def unused_computation(self, name: str) -> str:
        """A name for a computation that text does not name, after `name`."""
        return self.unused(name, self._computations)

    def unused(self, name: str, taken: Container[str]) -> str:
        """`name`, or `name` with a number after it, that is not among those taken."""
        if name not in taken:
            return name
        number = self._next.get(name, 0)
        while True:
            number += 1
            made = f"{name}.{number}"
            if made not in taken:
                self._next[name] = number
                return made

    def missing(self) -> tuple[str, int] | None:
        """A computation that is named (and where) but was never read; None if there is none."""
        return next(iter(self._waiting.items()), None)

    def instruction(self, name: str) -> str:
        """The name itself, or with a number after it where another computation has it already."""
        if name in self._taken:
            name = self.unused(name, self._taken)
        self._taken.add(name)
        return name
