"""Running rules: finding them, checking a module with them, ranking what they find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.fingerprint import stamp
from hloscope.guests import run_guest
from hloscope.plugins import own_rules, plugin_rules
from hloscope.rule import Finding, Need, OptionValue, Rule, Severity

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """What a user has set of one rule: its severity (None: the rule's own) and options."""

    severity: Severity | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])


@cache
def load_rules() -> tuple[Rule, ...]:
    """Every rule that is installed, hloscope's own and those of plug-ins, by code.

    Raises UserError for a plug-in that cannot be loaded, and for two rules with one code or one name.
    """
    found: dict[str, Rule] = {}
    for rule in (*own_rules(), *plugin_rules()):
        for taken in (rule.code, rule.name):
            other = found.setdefault(taken, rule)
            if other is not rule:
                who = " and ".join(r.plugin or "hloscope" for r in (other, rule))
                raise UserError(f"{who} have a rule {taken} each: uninstall one, or rename its rule")
    return tuple(sorted(set(found.values()), key=lambda r: r.code))


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
    found = [
        f
        for r in chosen_rules(select, ignore)
        for f in _check(r, analyses, (settings or {}).get(r.code, RuleSettings()))
    ]
    return stamp(ranked(found))


def judging(analyses: Analyses, rules: Iterable[Rule]) -> tuple[str, ...]:
    """The codes of the rules that have what they need to judge a module: of any other, no finding says nothing."""
    return tuple(r.code for r in rules if _has(analyses, r.needs))


def _has(analyses: Analyses, need: Need | None) -> bool:
    if need == "memory":
        return analyses.memory.peak_bytes is not None
    if need == "schedule":
        return analyses.module.is_scheduled
    if need == "times":
        return analyses.step_time.seconds is not None and not analyses.step_time.unknown
    return need is None or analyses.chip is not None


def chosen_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules whose codes begin with one of `select` (all, if it is empty) and with none of `ignore`.

    Raises UserError for a code that no rule begins with.
    """
    rules = load_rules()
    for name, codes in (("select", select), ("ignore", ignore)):
        if isinstance(codes, str):
            raise UserError(f'{name} takes a list of codes, ["{codes}"], not {codes!r}')
    for prefix in (*select, *ignore):
        if not prefix or not any(r.code.startswith(prefix.upper()) for r in rules):
            raise UserError(f"no rule begins with {prefix!r}; there are {', '.join(r.code for r in rules)}")
    chosen = tuple(r for r in rules if _is_chosen(r, select, ignore))
    if not chosen:
        raise UserError(
            f"no rule is left to run: {', '.join(select) or 'none'} selected, {', '.join(ignore)} ignored"
        )
    return chosen


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings of one rule together, as one cause; the dearest cause first, and in it the dearest finding."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    causes = sorted(by_code.values(), key=_price_of_all, reverse=True)
    return tuple(f for cause in causes for f in sorted(cause, key=_price, reverse=True))


def _check(rule: Rule, analyses: Analyses, settings: RuleSettings) -> list[Finding]:
    found = (
        run_guest(rule, analyses, settings.options)
        if rule.plugin
        else list(rule.check(analyses, **settings.options))
    )
    return found if settings.severity is None else [replace(f, severity=settings.severity) for f in found]


def _is_chosen(rule: Rule, select: Sequence[str], ignore: Sequence[str]) -> bool:
    wanted = not select or any(rule.code.startswith(s.upper()) for s in select)
    return wanted and not any(rule.code.startswith(s.upper()) for s in ignore)


_Price = tuple[int, float, int, int]


def _price(finding: Finding) -> _Price:
    """Severity, then the time that can be saved, the bytes that can be (or the memory that is held), and those that
    are moved; what is not known comes after what is."""
    return (
        finding.severity.rank,
        -1.0 if finding.saved_seconds is None else finding.saved_seconds,
        next((b for b in (finding.saved_bytes, finding.held_bytes) if b is not None), -1),
        -1 if finding.bytes is None else finding.bytes,
    )


def _price_of_all(findings: Sequence[Finding]) -> _Price:
    prices = [_price(f) for f in findings]
    severity = max(p[0] for p in prices)
    return (
        severity,
        _sum(p[1] for p in prices),
        int(_sum(p[2] for p in prices)),
        int(_sum(p[3] for p in prices)),
    )


def _sum(known: Iterable[float]) -> float:
    """The sum of what is known (not below zero); below zero where nothing is."""
    values = [v for v in known if v >= 0]
    return sum(values) if values else -1.0
