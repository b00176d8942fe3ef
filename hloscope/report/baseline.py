"""Findings that are known and accepted: a TOML file that a person can edit, with a reason for each of them.

One file holds the findings of many steps, each under its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hloscope.errors import UserError
from hloscope.files import read_toml
from hloscope.report.escape import printable
from hloscope.rule import Finding

VERSION = 2
# One step in a file, which did not say which one.
_UNNAMED_VERSION = 1
REASON = "known when this baseline was written"
_HEAD = """\
# Findings of hloscope that are known and accepted. Say why in `reason`; delete what has been mended.
# A fingerprint outlives renumbered instructions, moved lines and new compilers; code and title are for people.
# Findings above the first step are accepted in any. Other keys and comments are not kept.
"""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StepName:
    """What findings are kept under: `train.py:step` from the baseline's folder, or the module of a dump, and the
    topology ("" where that is not told)."""

    name: str
    topology: str = ""


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
    """The entries of a baseline file by step. `unnamed` stand below none, and hold for any."""

    path: str
    steps: Mapping[StepName, tuple[Entry, ...]]
    unnamed: tuple[Entry, ...] = ()

    def entries(self, step: StepName) -> tuple[Entry, ...]:
        """What is accepted of a step."""
        return (*self.steps.get(step, ()), *self.unnamed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Findings held against a baseline: new ones, accepted ones, and entries that nothing was found for.

    `others` are the steps that the file has in place of this one, `removed` the entries that writing it dropped.
    """

    path: str
    step: StepName
    new: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    stale: tuple[Entry, ...]
    others: tuple[StepName, ...] = ()
    removed: tuple[Entry, ...] = ()


def read_baseline(path: str, *, renewing: bool = False) -> Baseline:
    """Read a baseline file; one that is empty may be renewed. Raises UserError if it is not one."""
    if not Path(path).exists():
        raise UserError(f"there is no baseline {path}: write it with --write-baseline {path}")
    content = read_toml(path, f"the baseline {path}")
    version = content.get("version")
    if not content and renewing:
        return Baseline(path=path, steps={})
    if isinstance(version, int) and version > VERSION:
        raise UserError(f"the baseline {path} is of version {version}: a newer hloscope wrote it")
    if version not in (VERSION, _UNNAMED_VERSION):
        raise UserError(f"{path} is no baseline, which has `version = {VERSION}`: --write-baseline makes one")
    steps = _steps(path, content) if version == VERSION else {}
    return Baseline(path=path, steps=steps, unnamed=tuple(_entries(path, content)))


def _steps(path: str, content: Mapping[str, Any]) -> dict[StepName, tuple[Entry, ...]]:
    steps: dict[StepName, tuple[Entry, ...]] = {}
    for number, fields in enumerate(_tables(path, content, "step"), 1):
        name, topology = fields.get("name"), fields.get("topology", "")
        if not isinstance(name, str) or not name.strip() or not isinstance(topology, str):
            raise UserError(
                f"the baseline {path}: step {number} needs a text for name, and for topology if it has one"
            )
        _refuse_unknown(path, f"step {number}", fields, (*StepName.__slots__, "finding"))
        step = StepName(name=name, topology=topology)
        steps[step] = (*steps.get(step, ()), *_entries(path, fields))
    return steps


def _tables(path: str, content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found: object = content.get(name, [])
    if not isinstance(found, list) or not all(isinstance(v, dict) for v in cast("list[object]", found)):
        raise UserError(f"the baseline {path}: {name}s are tables, [[{name}]]")
    return cast("list[dict[str, Any]]", found)


def _entries(path: str, content: Mapping[str, Any]) -> Iterator[Entry]:
    for number, fields in enumerate(_tables(path, content, "finding"), 1):
        texts = {name: fields.get(name) for name in Entry.__slots__}
        for name, text in texts.items():
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"the baseline {path}: finding {number} needs a text for {name}")
        _refuse_unknown(path, f"finding {number}", fields, Entry.__slots__)
        yield Entry(**cast("dict[str, str]", texts))


def _refuse_unknown(path: str, where: str, fields: Mapping[str, Any], known: Iterable[str]) -> None:
    # Writing the file again would lose it.
    for name in fields.keys() - set(known):
        raise UserError(f"the baseline {path}: {where} has {name!r}; it takes {', '.join(known)}")


def hold(findings: Sequence[Finding], baseline: Baseline, ran: Iterable[str], step: StepName) -> Held:
    """Tell the findings of a step that a baseline accepts from new ones. `ran` are the codes of the rules that ran: an
    entry of any other is not stale, nor one that holds for any step."""
    entries = baseline.entries(step)
    reasons = {e.fingerprint: e.reason for e in entries}
    there, codes = {f.fingerprint for f in findings}, set(ran)
    return Held(
        path=baseline.path,
        step=step,
        new=tuple(f for f in findings if f.fingerprint not in reasons),
        suppressed=tuple(
            Suppressed(finding=f, reason=reasons[f.fingerprint]) for f in findings if f.fingerprint in reasons
        ),
        stale=tuple(
            e for e in baseline.steps.get(step, ()) if e.fingerprint not in there and e.code in codes
        ),
        others=() if step in baseline.steps else tuple(sorted(baseline.steps)),
    )


def renewed(findings: Sequence[Finding], older: Baseline, ran: Iterable[str], step: StepName) -> Baseline:
    """A baseline with entries for all findings of a step. What an older one says of them stays, under whatever step,
    and so do its entries of rules that did not run, those of other steps and those of any step."""
    known = (e for entries in (*older.steps.values(), older.entries(step)) for e in entries)
    reasons = {e.fingerprint: e.reason for e in known}
    codes, anywhere = set(ran), {e.fingerprint for e in older.unnamed}
    kept = [e for e in older.steps.get(step, ()) if e.code not in codes]
    accepted = (
        Entry(
            fingerprint=f.fingerprint,
            code=f.code,
            title=f.title,
            reason=reasons.get(f.fingerprint, REASON),
        )
        for f in findings
        if f.fingerprint not in anywhere
    )
    entries = tuple(sorted((*accepted, *kept), key=lambda e: (e.code, e.title, e.fingerprint)))
    return replace(older, steps={**older.steps, step: entries})


def removed(older: Baseline, newer: Baseline, step: StepName) -> tuple[Entry, ...]:
    """The entries of a step that an older baseline had and a newer one does not."""
    kept = {e.fingerprint for e in newer.entries(step)}
    return tuple(e for e in older.entries(step) if e.fingerprint not in kept)


def to_toml(baseline: Baseline) -> str:
    """The text of a baseline file."""
    tables = (
        "\n[[step]]\n"
        + "".join(_line(step, name) for name in StepName.__slots__ if getattr(step, name))
        + _tables_of("step.finding", entries)
        for step, entries in sorted(baseline.steps.items())
    )
    return f"{_HEAD}version = {VERSION}\n{_tables_of('finding', baseline.unnamed)}" + "".join(tables)


def _tables_of(kind: str, entries: Iterable[Entry]) -> str:
    return "".join(f"\n[[{kind}]]\n" + "".join(_line(e, name) for name in Entry.__slots__) for e in entries)


def _line(fields: StepName | Entry, name: str) -> str:
    # A JSON string of printable characters is a TOML string.
    return f"{name} = {json.dumps(printable(getattr(fields, name)), ensure_ascii=False)}\n"
