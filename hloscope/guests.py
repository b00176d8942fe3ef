"""Code of plug-ins at work: what it prints, raises and finds is held to what hloscope's own rules do."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, get_args

from hloscope.errors import UserError
from hloscope.rule import Finding, Fix, OptionValue, Rule, Severity

if TYPE_CHECKING:
    from hloscope.analysis.bundle import Analyses

_COUNTS = ("executions", "bytes", "saved_bytes", "held_bytes")


@contextmanager
def guest(what: str | Callable[[], str], remedy: str) -> Generator[None, None, None]:
    """Runs code of a plug-in: what it prints goes to standard error, since standard output may be a report, and
    whatever it raises, an exit among it, becomes a UserError, since what is not checked must not look clean.
    `what` is asked only then, where it is not told."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        told = what if isinstance(what, str) else what()
        raise UserError(f"{told}: {said}; {remedy}") from error


def run_guest(rule: Rule, analyses: Analyses, options: Mapping[str, OptionValue]) -> list[Finding]:
    """What a rule of a plug-in finds. Raises UserError if it fails, or gives what is no finding of its own."""
    with guest(
        f"rule {rule.code} of the plug-in {rule.plugin} failed", f"--ignore {rule.code} goes without it"
    ):
        return [_checked(rule, found) for found in rule.check(analyses, **options)]


def _checked(rule: Rule, found: object) -> Finding:
    if not isinstance(found, Finding):
        raise TypeError(f"it gives a {type(found).__name__}, not a Finding")
    values: dict[str, Any] = {name: getattr(found, name) for name in Finding.__slots__}
    wrong = [name for name, value in values.items() if not _fits(name, value)]
    if wrong:
        raise TypeError(f"its finding's {wrong[0]} cannot be {values[wrong[0]]!r:.100}")
    if found.code != rule.code:
        raise ValueError(f"its finding has the code {found.code!r:.100}")
    return found


def _fits(name: str, value: Any) -> bool:
    """Whether a field of a finding can have a value."""
    from hloscope.hlo import Instruction, SourceFrame

    if name in _COUNTS:
        return value is None or (type(value) is int and value >= 0)
    match name:
        case "fix":
            return value in get_args(Fix)
        case "title" | "code":
            return isinstance(value, str) and bool(value)
        case "advice" | "fingerprint":
            return isinstance(value, str)
        case "severity":
            return isinstance(value, Severity)
        case "places":
            return type(value) is int and value >= 1
        case "saved_seconds":
            return value is None or (type(value) in (int, float) and value >= 0 and math.isfinite(value))
        case "source":
            return value is None or isinstance(value, SourceFrame)
        case "instructions":
            return _holds(value, Instruction)
        case "details":
            return _holds(value, str)
        case _:
            return isinstance(value, Mapping) and _is_json(dict(cast("Mapping[object, object]", value)))


def _holds(value: object, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, kind) for v in cast("tuple[object, ...]", value))


def _is_json(value: dict[object, object]) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return all(isinstance(name, str) for name in value)
