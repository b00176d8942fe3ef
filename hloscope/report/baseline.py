"""Findings that are known and accepted: a TOML file that a person can edit, one entry for each, with its reason."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hloscope.errors import UserError
from hloscope.report.escape import printable
from hloscope.rule import Finding

VERSION = 1
REASON = "known when this baseline was written"
_HEAD = """\
# Findings of hloscope that are known and accepted. Say why in `reason`; delete what has been mended.
# A fingerprint outlives renumbered instructions, moved lines and new compilers; code and title are for people.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An accepted finding."""

    fingerprint: str
    code: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppressed:
    """A finding that a baseline accepts."""

    finding: Finding
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The entries of a baseline file."""

    path: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Findings held against a baseline: new ones, accepted ones, and entries that nothing was found for."""

    path: str
    new: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    stale: tuple[Entry, ...]


def read_baseline(path: str) -> Baseline:
    """Read a baseline file. Raises UserError if it is not one."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the baseline {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the baseline {path} is no TOML: {error}") from error
    if content.get("version") != VERSION:
        raise UserError(f"the baseline {path} has no `version = {VERSION}`: write one with --write-baseline")
    return Baseline(path=path, entries=tuple(_entries(path, content.get("finding", []))))


def _entries(path: str, found: object) -> Iterator[Entry]:
    if not isinstance(found, list):
        raise UserError(f"the baseline {path}: findings are tables, [[finding]]")
    for number, value in enumerate(cast("list[Any]", found), 1):
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        texts = {name: fields.get(name) for name in Entry.__slots__}
        for name, text in texts.items():
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"the baseline {path}: finding {number} needs a text for {name}")
        yield Entry(**cast("dict[str, str]", texts))


def hold(findings: Sequence[Finding], baseline: Baseline, ran: Iterable[str]) -> Held:
    """Tell the findings that a baseline accepts from new ones. `ran` are the codes of the rules that ran: an
    entry of any other is not stale."""
    reasons = {e.fingerprint: e.reason for e in baseline.entries}
    there, codes = {f.fingerprint for f in findings}, set(ran)
    return Held(
        path=baseline.path,
        new=tuple(f for f in findings if f.fingerprint not in reasons),
        suppressed=tuple(
            Suppressed(finding=f, reason=reasons[f.fingerprint]) for f in findings if f.fingerprint in reasons
        ),
        stale=tuple(e for e in baseline.entries if e.fingerprint not in there and e.code in codes),
    )


def renewed(findings: Sequence[Finding], older: Baseline | None, ran: Iterable[str]) -> tuple[Entry, ...]:
    """Entries for all findings. What an older baseline says of them stays, and so do its entries of rules that
    did not run."""
    reasons = {e.fingerprint: e.reason for e in older.entries} if older else {}
    codes = set(ran)
    kept = [e for e in older.entries if e.code not in codes] if older else []
    accepted = (
        Entry(
            fingerprint=f.fingerprint,
            code=f.code,
            title=f.title,
            reason=reasons.get(f.fingerprint, REASON),
        )
        for f in findings
    )
    return tuple(sorted((*accepted, *kept), key=lambda e: (e.code, e.title, e.fingerprint)))


def to_toml(entries: Iterable[Entry]) -> str:
    """The text of a baseline file."""
    tables = ("\n[[finding]]\n" + "".join(_line(e, name) for name in Entry.__slots__) for e in entries)
    return f"{_HEAD}version = {VERSION}\n" + "".join(tables)


def _line(entry: Entry, name: str) -> str:
    # A JSON string of printable characters is a TOML string.
    return f"{name} = {json.dumps(printable(getattr(entry, name)), ensure_ascii=False)}\n"
