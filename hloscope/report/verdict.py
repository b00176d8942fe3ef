"""What a report comes to in CI: which findings and budgets fail it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from hloscope.errors import UserError
from hloscope.report.budgets import Budget
from hloscope.report.model import Report
from hloscope.rule import CODE_PREFIX, Finding, Rule, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOn:
    """Findings that fail a run: of a severity or above, or with a code that begins with one of `codes`."""

    severity: Severity | None = None
    codes: tuple[str, ...] = ()

    def fails(self, finding: Finding) -> bool:
        """Whether the finding fails the run."""
        severe = self.severity is not None and finding.severity.rank >= self.severity.rank
        return severe or finding.code.startswith(self.codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A report, the rules that ran, and what fails it."""

    report: Report
    rules: tuple[Rule, ...]
    failing: tuple[Finding, ...]
    exceeded: tuple[Budget, ...]

    @property
    def compiled(self) -> bool:
        """Whether there is a compiled step, and not only what a failed compile left."""
        return self.report.target.status == "ok"

    @property
    def passed(self) -> bool:
        """Whether nothing fails it."""
        return self.compiled and not self.failing and not self.exceeded

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it failed, a line each."""
        codes = ", ".join(dict.fromkeys(f.code for f in self.failing))
        names = ", ".join(b.name for b in self.exceeded)
        return (
            *(
                ()
                if self.compiled
                else (f"the compile failed: {self.report.target.error or 'nobody said why'}",)
            ),
            *((f"{codes} reached --fail-on",) if codes else ()),
            *((f"over the budget for {names}",) if names else ()),
        )


def judge(report: Report, rules: Sequence[Rule], fail_on: FailOn) -> Verdict:
    """The verdict on a report."""
    return Verdict(
        report=report,
        rules=tuple(rules),
        failing=tuple(f for f in report.findings if fail_on.fails(f)),
        exceeded=tuple(b for b in report.budgets if b.exceeded),
    )


def parse_fail_on(words: Sequence[str], known: Sequence[str], source: str = "--fail-on") -> FailOn:
    """`warning`, `HS101`, `HS2`, `never`, also separated by commas; `known` are the codes that there are, `source`
    where the words stand.

    Raises UserError for anything else.
    """
    levels = {s.value: s for s in Severity}
    split = [word.strip() for text in words for word in text.split(",") if word.strip()]
    if words and not split:
        raise UserError(f"{source} is empty: write info, warning, error, never or a rule code such as HS201")
    if [w.lower() for w in split] == ["never"]:
        return FailOn()
    if "never" in (w.lower() for w in split):
        raise UserError(f"{source} never stands alone: it says that no finding fails")
    severities = [levels[w.lower()] for w in split if w.lower() in levels]
    words = [w for w in split if w.lower() not in levels]
    codes = tuple(w.upper() for w in words)
    for word, code in zip(words, codes, strict=True):
        if any(k.startswith(code) for k in known):
            continue
        if CODE_PREFIX.fullmatch(code):
            raise UserError(f"{source} {code}: there is no such rule; there are {', '.join(known)}")
        near = difflib.get_close_matches(word.lower(), (*levels, "never"), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "it takes info, warning, error, never or rule codes"
        raise UserError(f"{source}: {word!r} is no severity and no rule; {hint}")
    return FailOn(severity=min(severities, key=lambda s: s.rank, default=None), codes=codes)


def split_codes(words: Sequence[str], source: str) -> tuple[str, ...]:
    """What codes of rules begin with, upper case: `HS101`, `HS2`, and `ACME` for all of a plug-in.

    Raises UserError where something was written and no code is in it, an unset variable of a script for one: that
    may be meant as all rules or as none. `source` says where it stands.
    """
    codes = tuple(word.strip().upper() for text in words for word in text.split(",") if word.strip())
    if words and not codes:
        raise UserError(f"{source} is empty: write codes such as HS2 or HS201, or leave it out")
    return codes


def parse_codes(words: Sequence[str], source: str) -> tuple[str, ...]:
    """Rule codes or prefixes of them with a digit, upper case. Raises UserError for what is none, and for nothing."""
    codes = split_codes(words, source)
    for code in codes:
        if not CODE_PREFIX.fullmatch(code):
            raise UserError(f"{source}: {code!r} is no rule code such as HS201; see: hloscope rules")
    return codes
