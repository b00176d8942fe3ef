"""Pairing the rows of two reports: families, collectives, buffers, findings that are the same work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.analysis.memory_names import split_name
from hloscope.analysis.place import is_program_name

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A table of the report. `traits` say what a row is, `figures` how much there is of it.

    `keys` are what rows are paired by, the strictest first; after a row's traits and figures in full. `op` in them
    stands for the program's own scopes and operation in the op name, unnumbered, `scopes` for the scopes alone.
    `hints` are for pairing only, and a row may lack them: it is then like no other by them. `weight` is the figure
    that orders changes.
    """

    traits: tuple[str, ...]
    figures: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    weight: str
    hints: tuple[str, ...] = ("op_name",)


BUFFERS = Kind(
    traits=("label", "shape", "phases"),
    figures=("count", "bytes", "unpadded_bytes"),
    keys=(("label", "shape", "phases"), ("shape", "phases"), ("label", "phases"), ("label",)),
    weight="bytes",
)
CENSUS = Kind(
    traits=("family", "kind", "phase", "loop", "shape", "thread"),
    figures=("count", "executions", "bytes", "seconds"),
    keys=(
        ("family", "kind", "phase", "loop", "shape", "thread"),
        ("op", "family", "phase", "shape"),
        ("family", "phase", "shape"),
        ("op", "phase", "shape"),
        ("op", "family", "phase"),
    ),
    weight="bytes",
)
COLLECTIVES = Kind(
    traits=(
        "opcode", "form", "shape", "operand_shape", "dimension", "mesh_axes", "group_size", "offload",
        "asynchronous", "phase",
    ),
    figures=("count", "executions", "bytes", "seconds", "exposed_seconds"),
    keys=(
        ("opcode", "shape", "operand_shape", "dimension", "mesh_axes", "phase"),
        ("opcode", "shape", "mesh_axes", "phase"),
        # A compile tells the axes, a dump perhaps only how large the groups are.
        ("opcode", "shape", "group_size", "phase"),
        ("op", "shape", "group_size", "phase"),
        ("op", "opcode", "phase"),
    ),
    weight="bytes",
)  # fmt: skip
FINDINGS = Kind(
    traits=("code", "severity", "title", "fingerprint"),
    figures=("places", "executions", "bytes", "saved_bytes", "saved_seconds", "held_bytes"),
    keys=(
        ("fingerprint",),
        ("code", "title"),
        # At one place another width makes another array: the same finding, with another price.
        ("code", "phase", "op"),
        ("code", "phase", "scopes"),
        ("code", "phase", "source"),
    ),
    weight="bytes",
    hints=("op_name", "phase", "source"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A row of one side and the one of the other that is the same work; None where there is none."""

    before: Row | None
    after: Row | None

    @property
    def status(self) -> str:
        """`new`, `gone` or `changed`."""
        return "new" if self.before is None else "gone" if self.after is None else "changed"

    def mirrored(self) -> Change:
        """The change the other way."""
        return Change(before=self.after, after=self.before)

    def delta(self, figure: str) -> float | None:
        """How much more there is of a figure; of what is not there, nothing; None where it is not known."""
        before = 0 if self.before is None else self.before[figure]
        after = 0 if self.after is None else self.after[figure]
        return None if before is None or after is None else after - before


def changes(kind: Kind, before: Sequence[Row], after: Sequence[Row]) -> tuple[Change, ...]:
    """What differs between two tables, the heaviest change first. The same both ways, but mirrored."""
    left, right = list(before), list(after)
    pairs: list[tuple[Row, Row]] = []
    whole = (*kind.traits, *kind.figures)
    for key in (whole, *kind.keys):
        found, left, right = _paired(
            left,
            right,
            lambda row, key=key: _key(row, key),
            lambda row: (-(row[kind.weight] or 0), _text(row)),
        )
        # Rows that are equal in full have not changed.
        pairs += found if key != whole else []
    made = [Change(before=b, after=a) for b, a in pairs if _differs(b, a, kind)]
    made += [Change(before=b, after=None) for b in left] + [Change(before=None, after=a) for a in right]
    return tuple(sorted(made, key=lambda c: _order(kind, c)))


# What a compile tells, and a dump perhaps not.
_MAY_BE_UNKNOWN = frozenset({"mesh_axes", "group_size"})


def _differs(before: Row, after: Row, kind: Kind) -> bool:
    """Whether two rows differ in what both sides know."""
    known = [
        name
        for name in (*kind.traits, *kind.figures)
        if name not in (*_MAY_BE_UNKNOWN, *kind.figures) or None not in (before[name], after[name])
    ]
    return _key(before, known) != _key(after, known)


def _paired(
    left: list[Row], right: list[Row], key: Callable[[Row], str], order: Callable[[Row], tuple[float, str]]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """Pairs of equal keys, and what is left over of both sides. Of several with one key the like-ordered pair up: the
    heaviest with the heaviest."""
    waiting: dict[str, list[Row]] = {}
    for row in sorted(right, key=order):
        waiting.setdefault(key(row), []).append(row)
    pairs: list[tuple[Row, Row]] = []
    rest: list[Row] = []
    for row in sorted(left, key=order):
        same = waiting.get(key(row))
        if same:
            pairs.append((row, same.pop(0)))
        else:
            rest.append(row)
    return pairs, rest, [row for rows in waiting.values() for row in rows]


def _key(row: Row, names: Sequence[str]) -> str:
    return json.dumps([_value(row, name) for name in names])


def _value(row: Row, name: str) -> object:
    if name == "op":
        return _operation(row) or _text(row)
    if name == "scopes":
        found = _operation(row)
        return (found and found[0]) or _text(row)
    # A source that is not told is like no other; a phase that is not told (by an older report) like all such.
    return (row.get(name) or _text(row)) if name == "source" else row.get(name)


def _operation(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The program's scopes and operation; None of work that the program has not named, which is like no other by it."""
    op_name = row.get("op_name") or ""
    return split_name(op_name) if is_program_name(op_name) else None


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def _order(kind: Kind, change: Change) -> tuple[float, list[str]]:
    delta = change.delta(kind.weight)
    return -abs(delta or 0), sorted(_text(row) for row in (change.before, change.after) if row is not None)
