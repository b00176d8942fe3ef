"""Values that the partitioner replicated for want of a better way, as the compiler's warnings tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hloscope.hlo import Instruction, Module

_WARNING = "nvoluntary full rematerialization"
_OPERATION = re.compile(r"HLO operation:? %?[\w.\-]+ = (\w+\[[\d,]*\])")
_PATH = re.compile(r'op_name="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A value that the compiler warned about: its shape, an instruction of the same operation in the optimized module
    (None where there is none left), how many warnings say the same, and the first of them."""

    shape: str
    instruction: Instruction | None
    count: int
    text: str


def replicated_values(module: Module, warnings: Sequence[str]) -> Iterator[Replicated]:
    """The values in the compiler's warnings about involuntary full rematerialization, by shape and operation."""
    families: dict[tuple[str, str], list[str]] = {}
    for warning in warnings:
        if _WARNING in warning:
            said, path = _OPERATION.search(warning), _PATH.search(warning)
            key = (said[1] if said else "a value", path[1] if path else "")
            families.setdefault(key, []).append(warning)
    for (shape, path), found in families.items():
        named = next((i for i in module.instructions if path and i.op_name == path), None)
        yield Replicated(shape=shape, instruction=named, count=len(found), text=found[0])
