"""What makes `hloscope analyze` exit with 1: findings and budgets, as they are typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hloscope.errors import UserError
from hloscope.report.model import BUDGET_NAMES
from hloscope.rule import Finding, Severity
from hloscope.units import parse_size

_CODE = re.compile(r"HS[0-9]{1,3}", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """Findings that fail a run: of a severity or above, or with a code that begins with one of `codes`."""

    severity: Severity | None
    codes: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> FailOn:
        """`warning`, `HS101`, `HS2`, also separated by commas. Raises UserError for anything else."""
        levels = {s.value: s for s in Severity}
        split = [word for text in words for word in _split(text)]
        severities = [levels[w.lower()] for w in split if w.lower() in levels]
        codes = parse_codes([w for w in split if w.lower() not in levels])
        _check_rules(codes)
        if words and not split:
            raise UserError("--fail-on is empty: write info, warning, error or a rule code such as HS201")
        return cls(severity=min(severities, key=lambda s: s.rank, default=None), codes=codes)

    def fails(self, finding: Finding) -> bool:
        """Whether the finding fails the run."""
        severe = self.severity is not None and finding.severity.rank >= self.severity.rank
        return severe or finding.code.startswith(self.codes)


def parse_codes(words: Sequence[str]) -> tuple[str, ...]:
    """Rule codes or prefixes of them, upper case. Raises UserError for what is none."""
    codes = tuple(word.upper() for text in words for word in _split(text))
    for code in codes:
        if not _CODE.fullmatch(code):
            raise UserError(f"{code!r} is no rule code such as HS201; see: hloscope rules")
    return codes


def parse_budgets(words: Sequence[str]) -> dict[str, int]:
    """`temp=92GiB` as {"temp": bytes}. Raises UserError for an unknown name, no size, a name given twice."""
    budgets: dict[str, int] = {}
    for word in words:
        name, equals, limit = word.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not equals or name not in BUDGET_NAMES:
            raise UserError(
                f"--budget {word}: write NAME=SIZE, e.g. temp=92GiB, with one of {', '.join(BUDGET_NAMES)}"
            )
        if name in budgets:
            raise UserError(f"--budget {name} is given twice")
        budgets[name] = parse_size(limit)
    return budgets


def _split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_rules(codes: Sequence[str]) -> None:
    if not codes:
        return
    from hloscope.engine import load_rules

    known = [r.code for r in load_rules()]
    for code in codes:
        if not any(k.startswith(code) for k in known):
            raise UserError(f"--fail-on {code}: there is no such rule; there are {', '.join(known)}")
