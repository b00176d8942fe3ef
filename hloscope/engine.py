"""Running rules: finding them, checking a module with them, ranking what they find."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.rule import Finding, OptionValue, Rule, Severity

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses

# Numbers that the compiler gives out anew at each compile, and the suffixes of its copies.
_RENUMBERED = re.compile(r"\.(?:\d+|clone|cloned|remat\d*|sunk)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """What a user has set of one rule: its severity (None: the rule's own) and options."""

    severity: Severity | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])


@cache
def load_rules() -> tuple[Rule, ...]:
    """Every rule that is installed, by code."""
    import hloscope_rules

    found: dict[str, Rule] = {}
    for info in pkgutil.iter_modules(hloscope_rules.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{hloscope_rules.__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Rule):
                found[value.code] = value
    return tuple(found[code] for code in sorted(found))


def get_rule(code: str) -> Rule:
    """The rule of a code such as HS101, in any case. Raises UserError where there is none."""
    rules = {r.code: r for r in load_rules()}
    rule = rules.get(code.upper())
    if rule is None:
        raise UserError(f"there is no rule {code!r}; there are {', '.join(rules)}")
    return rule


def run_rules(
    analyses: Analyses,
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    settings: Mapping[str, RuleSettings] | None = None,
) -> tuple[Finding, ...]:
    """Run the rules, or those in `select`, without those in `ignore`; the dearest finding first.

    Codes may be prefixes: `HS2` selects every HS2xx. `settings` are by code. Raises UserError for a code that
    matches no rule.
    """
    rules = load_rules()
    for prefix in (*select, *ignore):
        if not any(r.code.startswith(prefix.upper()) for r in rules):
            raise UserError(f"no rule begins with {prefix!r}; there are {', '.join(r.code for r in rules)}")
    chosen = [r for r in rules if _is_chosen(r, select, ignore)]
    if not chosen:
        raise UserError(
            f"no rule is left to run: {', '.join(select) or 'none'} selected, {', '.join(ignore)} ignored"
        )
    found = (f for r in chosen for f in _check(r, analyses, (settings or {}).get(r.code, RuleSettings())))
    stamped = (replace(f, fingerprint=fingerprint(f)) for f in found)
    return tuple(sorted(stamped, key=_price, reverse=True))


def _check(rule: Rule, analyses: Analyses, settings: RuleSettings) -> Iterator[Finding]:
    for finding in rule.check(analyses, **settings.options):
        yield finding if settings.severity is None else replace(finding, severity=settings.severity)


def fingerprint(finding: Finding) -> str:
    """A name for a finding that outlives renumbered instructions and moved lines: 12 hex digits.

    Made of the rule, the title (shape, family and place in it) and the operation's path in the program.
    """
    path = finding.instructions[0].op_name if finding.instructions else ""
    text = "\n".join((finding.code, finding.title, _RENUMBERED.sub("", path)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_chosen(rule: Rule, select: Sequence[str], ignore: Sequence[str]) -> bool:
    wanted = not select or any(rule.code.startswith(s.upper()) for s in select)
    return wanted and not any(rule.code.startswith(s.upper()) for s in ignore)


def _price(finding: Finding) -> tuple[int, int, int, str]:
    """What can be saved, then what is moved; severity first. Unknown prices come last, code breaks ties."""
    saved = -1 if finding.saved_bytes is None else finding.saved_bytes
    moved = -1 if finding.bytes is None else finding.bytes
    return finding.severity.rank, saved, moved, finding.code
