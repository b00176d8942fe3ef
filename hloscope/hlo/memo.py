"""Derived facts that are worked out once and live as long as their module."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hloscope.hlo.instruction import Computation, Instruction
    from hloscope.hlo.module import Module

Part = TypeVar("Part", "Instruction", "Computation")
Fact = TypeVar("Fact")

_UNASKED: Any = object()


def once_per_module(function: Callable[[Module], Fact]) -> Callable[[Module], Fact]:
    """A function of a module that is computed when it is first asked for."""

    @wraps(function)
    def ask(module: Module) -> Fact:
        known = module.facts[function]
        if module not in known:
            known[module] = function(module)
        return known[module]

    return ask


def once_for_each(function: Callable[[Part], Fact]) -> Callable[[Part], Fact]:
    """A function of an instruction, or of a computation, that is computed once for each."""

    @wraps(function)
    def ask(part: Part) -> Fact:
        known = part.module.facts[function]
        fact = known.get(part, _UNASKED)
        if fact is _UNASKED:
            fact = known[part] = function(part)
        return fact

    return ask
