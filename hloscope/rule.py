"""What a rule is, what it finds, and how its docstring is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses
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
    would be saved, `saved_seconds` the estimated time; None is unknown. `details` are lines for a person.
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


Check = Callable[["Analyses"], Iterable[Finding]]

HEADINGS = ("What it does", "Why is this bad", "Example", "What to do", "Fix safety")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: its code, the name of the bad pattern, its severity, its check, and the docs of its module."""

    code: str
    name: str
    severity: Severity
    check: Check
    doc: str

    @property
    def summary(self) -> str:
        """The first line of the docs."""
        return self.doc.splitlines()[0]

    @property
    def sections(self) -> dict[str, str]:
        """The docs by heading."""
        parts = re.split(r"^## (.+)$", self.doc, flags=re.MULTILINE)
        return {h.strip(): t.strip() for h, t in zip(parts[1::2], parts[2::2], strict=True)}


def rule(*, code: str, name: str, severity: Severity) -> Callable[[Check], Rule]:
    """Make a rule of a check. Its docs are the check's docstring, with the headings in `HEADINGS`."""

    def make(check: Check) -> Rule:
        doc = inspect.getdoc(check) or ""
        return Rule(code=code, name=name, severity=severity, check=check, doc=doc)

    return make
