"""What a rule is, what it finds, and how its docstring is read."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from hloscope.errors import UserError
from hloscope.units import parse_size

if TYPE_CHECKING:
    from hloscope.hlo import Instruction, SourceFrame


class Severity(Enum):
    """How much a finding matters; `rank` orders them for `--fail-on`."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


Fix = Literal["safe", "unsafe", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One family of wasteful instructions: same cause, same shape, same place.

    `bytes` are HBM bytes that its instructions move in a step (loop trips included), `saved_bytes` those that
    would be saved, `saved_seconds` the estimated time; None is unknown. Of a collective they are its payload.
    `held_bytes` is memory that it holds at the peak of a device, where it is about memory. `details` are lines for
    a person.
    """

    code: str
    severity: Severity
    title: str
    instructions: tuple[Instruction, ...]
    places: int  # how many times the pattern stands in the module
    source: SourceFrame | None
    executions: int | None
    bytes: int | None
    saved_bytes: int | None
    saved_seconds: float | None
    fix: Fix
    advice: str  # what to do, one line
    details: tuple[str, ...] = ()
    fingerprint: str = ""  # filled in by the engine
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # figures behind the title, for JSON
    held_bytes: int | None = None


# What a rule cannot judge without: the buffer assignment, the time of every part of the step, the chip.
Need = Literal["memory", "times", "chip", "schedule"]

# A check takes the analyses, and its options as keywords with defaults.
Check = Callable[..., Iterable[Finding]]
OptionValue = bool | int | float | str

# Whole codes, and what they may begin with: capitals, then digits. `HS` is hloscope's own.
CODE = re.compile(r"[A-Z]{2,10}[0-9]{3}", re.ASCII)
OWN_PREFIX = "HS"
CODE_PREFIX = re.compile(r"[A-Z]{2,10}[0-9]{1,3}", re.ASCII)

HEADINGS = ("What it does", "Why is this bad", "Example", "What to do", "Fix safety")
_KINDS: dict[type, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
# One more for a rule with options: a list item for each, "- `name`: what it is".
OPTIONS_HEADING = "Options"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a user can set of a rule: a keyword of its check, with the default and the docs that it has there."""

    name: str
    default: OptionValue
    doc: str

    @property
    def kind(self) -> str:
        """What is taken, in a word or two: `size`, `number`, `whole number`, `true or false`, `text`."""
        if self.name.endswith("_bytes"):
            return "size"
        return _KINDS[type(self.default)]

    def parse(self, value: object) -> OptionValue:
        """A user's value in the type of the default; sizes (options in `_bytes`) also as `64MiB`.

        Raises UserError for a value of another type, and for numbers below zero or without end.
        """
        if self.kind == "size" and isinstance(value, str):
            return parse_size(value)
        if type(self.default) is float and type(value) is int:
            value = float(value)
        if type(value) is not type(self.default):
            raise UserError(f"{value!r} is no {self.kind}")
        if isinstance(value, int | float) and not (value >= 0 and math.isfinite(value)):
            raise UserError(f"{value} is below zero or without end")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: its code, the name of the bad pattern, its severity, its check, and the docs of its module."""

    code: str
    name: str
    severity: Severity
    check: Check
    doc: str
    options: tuple[Option, ...] = ()
    plugin: str = ""  # the distribution that brings it, if it is not hloscope's own
    needs: Need | None = None

    @property
    def summary(self) -> str:
        """The first line of the docs; the name where Python has left those out (`-OO`)."""
        return self.doc.splitlines()[0] if self.doc else self.name

    @property
    def sections(self) -> dict[str, str]:
        """The docs by heading."""
        return _sections(self.doc)


def rule(*, code: str, name: str, severity: Severity, needs: Need | None = None) -> Callable[[Check], Rule]:
    """Make a rule of a check. Its docs are the check's docstring, with the headings in `HEADINGS`.

    Keyword-only parameters of the check are the rule's options; each has a default, whose type it takes. A rule that
    finds nothing where something is not known says so with `needs`: then nobody takes its silence for a clean step.
    """

    def make(check: Check) -> Rule:
        doc = inspect.getdoc(check) or ""
        return Rule(
            code=code,
            name=name,
            severity=severity,
            check=check,
            doc=doc,
            options=_options(check, doc),
            needs=needs,
        )

    return make


def _options(check: Check, doc: str) -> tuple[Option, ...]:
    parameters = inspect.signature(check).parameters.values()
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    for keyword in keywords:
        if not isinstance(keyword.default, bool | int | float | str):
            raise TypeError(
                f"option {keyword.name} of a rule needs a default: a number, a text, true or false"
            )
    docs = _option_docs(_sections(doc).get(OPTIONS_HEADING, ""))
    return tuple(Option(name=k.name, default=k.default, doc=docs.get(k.name, "")) for k in keywords)


def _sections(doc: str) -> dict[str, str]:
    parts = re.split(r"^## (.+)$", doc, flags=re.MULTILINE)
    return {h.strip(): t.strip() for h, t in zip(parts[1::2], parts[2::2], strict=True)}


def _option_docs(section: str) -> dict[str, str]:
    """The items of the list by option name, each on one line."""
    items = re.split(r"^- `(\w+)`: ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(items[1::2], items[2::2], strict=True)}
