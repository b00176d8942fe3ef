"""What of a module is in no vocabulary of hloscope's: told once, and analyzed as far as that goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hloscope.hlo import Instruction, Module
from hloscope.hlo.opcodes import FUSION_KINDS, OPCODES
from hloscope.units import plural, some

_MOST_NAMED = 5


def unknown_words(module: Module) -> tuple[str, ...]:
    """A note on opcodes that hloscope does not know, and one on kinds of fusions."""
    notes: list[str] = []
    if opcodes := set(module.opcode_counts) - OPCODES:
        found = list(_instructions(module, opcodes, lambda i: i.opcode in opcodes))
        notes.append(
            f"{_told(found, 'opcode', lambda i: i.opcode)}: what it computes is not known, its time is that of the "
            "bytes that it reads and writes"
        )
    kinds = [i for i in _instructions(module, {"fusion"}, lambda i: i.opcode == "fusion") if _is_odd(i)]
    if kinds:
        notes.append(f"{_told(kinds, 'kind of fusion', lambda i: i.fusion_kind)}: it is taken like any other")
    return tuple(notes)


def _is_odd(fusion: Instruction) -> bool:
    return fusion.fusion_kind is not None and fusion.fusion_kind not in FUSION_KINDS


def _instructions(
    module: Module, opcodes: set[str], wanted: Callable[[Instruction], bool]
) -> Iterator[Instruction]:
    for computation in module.computations:
        if not opcodes.isdisjoint(module.opcodes_in(computation.id)):
            yield from filter(wanted, computation.instructions)


def _told(found: list[Instruction], what: str, word: Callable[[Instruction], str | None]) -> str:
    """`unknown opcode frobnicate, 3 instructions, %x for one`."""
    words = list(dict.fromkeys(str(word(i)) for i in found))
    example = f", %{found[0].name} for one" if len(found) > 1 else f", %{found[0].name}"
    return f"unknown {what} {some(words, _MOST_NAMED)} ({plural(len(found), 'instruction')}{example})"
