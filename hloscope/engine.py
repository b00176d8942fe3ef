"""Running rules: finding them, checking a module with them, ranking what they find."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.rule import Finding, Rule

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses

# Numbers that the compiler gives out anew at each compile, and the suffixes of its copies.
_RENUMBERED = re.compile(r"\.(?:\d+|clone|cloned|remat\d*|sunk)\b")


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
    analyses: Analyses, *, select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Finding, ...]:
    """Run the rules, or those in `select`, without those in `ignore`; the dearest finding first.

    Codes may be prefixes: `HS2` selects every HS2xx. Raises UserError for one that matches no rule.
    """
    rules = load_rules()
    for prefix in (*select, *ignore):
        if not any(r.code.startswith(prefix.upper()) for r in rules):
            raise UserError(f"no rule begins with {prefix!r}; there are {', '.join(r.code for r in rules)}")
    chosen = [r for r in rules if _is_chosen(r, select, ignore)]
    findings = (f for r in chosen for f in r.check(analyses))
    stamped = (replace(f, fingerprint=fingerprint(f)) for f in findings)
    return tuple(sorted(stamped, key=_price, reverse=True))


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
