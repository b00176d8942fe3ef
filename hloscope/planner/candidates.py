"""Findings turned into actions that are worth a try. What a try brings is measured, never assumed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hloscope.hlo import Shape
from hloscope.plan import Action, BeforeLoop, LogicalRules, LoopUpdate, MeshAxes, MoveAxis, ValidRows
from hloscope.rule import Finding

# The findings that each kind of action is for. Their rules say that the fix is safe.
ROWS_CODES = frozenset({"HS101", "HS102", "HS103"})
UPDATE_CODES = frozenset({"HS309"})
WAITING_CODES = frozenset({"HS301"})
MOVE_CODES = frozenset({"HS201"})
# Those of which any may be gone with another of the rule sets that a step offers.
_SHARDINGS = "HS2"


def has_action(code: str) -> bool:
    """Whether there is anything that could be tried against findings of a rule."""
    return code in ROWS_CODES | UPDATE_CODES | WAITING_CODES | MOVE_CODES or code.startswith(_SHARDINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An argument of the step: its name, global shape, and the mesh axes of each dimension, None if unknown.

    `twins` are the names of all that share its place and move with it, its own among them.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...] | None
    donated: bool
    twins: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Row-wise work that a kernel could do on valid rows alone, or the reason why it cannot be proved."""

    key: str
    kernel: str
    refusal: str | None
    proof: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """A stacked parameter that the loop which makes its gradient could update, or why it cannot.

    `shape` is its global one; `proof` are lines that say what the verdict rests on.
    """

    parameter: str
    shape: tuple[int, ...]
    refusal: str | None
    proof: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Work that could be done before a loop that its operands only wait through, and what shows it."""

    key: str
    proof: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a worker told of a step (`rewrite.describe`)."""

    arrays: tuple[Array, ...]
    mesh: Mapping[str, int]
    rule_sets: Mapping[str, Mapping[str, MeshAxes]]
    clusters: tuple[Cluster, ...]
    updates: tuple[Updated, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    @property
    def proofs(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The verdict on each cluster, update and piece of work, and the lines of its proof."""
        updated, early = "can be updated in the backward loop", "can be done before the loop"
        return (
            *((f"{c.key}: {_verdict(f'kernel {c.kernel}', c.refusal)}", c.proof) for c in self.clusters),
            *((f"{u.parameter}: {_verdict(updated, u.refusal)}", u.proof) for u in self.updates),
            *((f"{w.key}: {early}", w.proof) for w in self.waiting),
        )

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Described:
        """The worker's answer."""
        return cls(
            arrays=tuple(_array(leaf) for leaf in told["leaves"]),
            mesh=told["mesh"],
            rule_sets={name: _changes(changes) for name, changes in told["rule_sets"].items()},
            clusters=tuple(Cluster(**c | {"proof": tuple(c["proof"])}) for c in told["clusters"]),
            updates=tuple(_updated(u) for u in told["updates"]),
            waiting=tuple(Waiting(key=w["key"], proof=tuple(w["proof"])) for w in told["waiting"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the findings behind a candidate promise; None is unknown. Nothing is promised for memory."""

    sites: int
    saved_bytes: int | None
    saved_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An action, the codes of the findings that it is for, and what they promise.

    Of candidates with one `group` at most one can be kept. `safe` says that the result can change by no more
    than the order in which devices add up: a rule set is not, since a builder may do anything with its rules.
    """

    action: Action
    codes: tuple[str, ...]
    group: str
    safe: bool
    prediction: Prediction


def candidates(findings: Sequence[Finding], described: Described) -> list[Candidate]:
    """Every action that may help against a finding, in the order in which they are tried."""
    rows = [f for f in findings if f.code in ROWS_CODES]
    shardings = [f for f in findings if f.code.startswith(_SHARDINGS)]
    found = [
        *_valid_rows(rows, described),
        *_loop_updates([f for f in findings if f.code in UPDATE_CODES], described),
        *_before_loops([f for f in findings if f.code in WAITING_CODES], described),
        *_rule_sets(shardings, described),
    ]
    moves: dict[Action, Candidate] = {}
    for finding in shardings:
        if finding.code in MOVE_CODES:
            moves |= {c.action: c for c in _moves(finding, described) if c.action not in moves}
    return [*found, *moves.values()]


def _proved(action: Action, group: str, findings: Sequence[Finding]) -> Candidate:
    """An action that is proved, against all of these findings together."""
    codes = tuple(sorted({f.code for f in findings}))
    return Candidate(action=action, codes=codes, group=group, safe=True, prediction=_prediction(findings))


def _valid_rows(findings: Sequence[Finding], described: Described) -> Iterator[Candidate]:
    """All clusters that can be proved, together: kernels that share a buffer pay only side by side."""
    keys = tuple(dict.fromkeys(c.key for c in described.clusters if c.refusal is None))
    if findings and keys:
        yield _proved(ValidRows(clusters=keys), "valid-rows", findings)


def _loop_updates(findings: Sequence[Finding], described: Described) -> Iterator[Candidate]:
    """All parameters that can be updated in their loops, together: each stack of gradients counts at the peak."""
    names = tuple(u.parameter for u in described.updates if u.refusal is None)
    if findings and names:
        yield _proved(LoopUpdate(parameters=names), "loop-update", findings)


def _before_loops(findings: Sequence[Finding], described: Described) -> Iterator[Candidate]:
    work = tuple(dict.fromkeys(w.key for w in described.waiting))
    if findings and work:
        yield _proved(BeforeLoop(work=work), "before-loop", findings)


def _rule_sets(findings: Sequence[Finding], described: Described) -> Iterator[Candidate]:
    for name, changes in described.rule_sets.items() if findings else ():
        yield Candidate(
            action=LogicalRules(name=name, changes=changes),
            codes=tuple(sorted({f.code for f in findings})),
            group="rules",
            safe=False,
            prediction=_prediction(findings),
        )


def _moves(finding: Finding, described: Described) -> Iterator[Candidate]:
    """The scattered mesh axes moved to another dimension of the parameter whose gradient this is."""
    axes: tuple[str, ...] = tuple(finding.facts.get("mesh_axes") or [])
    if not axes or any(a not in described.mesh for a in axes):
        return
    for array, rank in _parameters(finding.instructions[0].shape, axes, described):
        source = sharded_dimension(array, axes)
        for target in _targets(array, axes, source, rank, described.mesh):
            yield Candidate(
                action=MoveAxis(
                    parameter=array.name, shape=array.shape, axes=axes, source=source, target=target
                ),
                codes=(finding.code,),
                group=array.name,
                safe=True,
                prediction=_prediction([finding]),
            )


def _parameters(value: Shape, axes: tuple[str, ...], described: Described) -> list[tuple[Array, int]]:
    """The arrays whose gradient this can be, one of each place in the tree, with the gradient's rank.

    Where one has the value's very shape, those that only have its size (the compiler splits and turns
    dimensions) are left out.
    """
    found: list[tuple[Array, int, bool]] = []
    moved: set[str] = set()
    for array in described.arrays:
        local = gradient_shape(array, axes, described.mesh)
        rank = None if local is None else _covered(value.elements, local)
        if local is not None and rank is not None and array.name not in moved:
            moved.update(array.twins)
            found.append((array, rank, _without_ones(local[-rank:]) == _without_ones(value.dimensions)))
    exact = any(same for *_, same in found)
    return [(array, rank) for array, rank, same in found if same or not exact]


def gradient_shape(array: Array, axes: tuple[str, ...], sizes: Mapping[str, int]) -> list[int] | None:
    """The shape on one device of an array's gradient before it is scattered over `axes`.

    None where the array is not replaced by the step, or not laid out over these axes.
    """
    if not array.donated or array.axes is None or sharded_dimension(array, axes) < 0:
        return None
    return [
        size // math.prod([sizes[a] for a in over if a not in axes])
        for size, over in zip(array.shape, array.axes, strict=True)
    ]


def _covered(elements: int, local: Sequence[int]) -> int | None:
    """How many trailing dimensions have so many elements: those before are the layers of a stack."""
    for rank in range(2, len(local) + 1):
        if math.prod(local[-rank:]) == elements:
            return rank
    return None


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def sharded_dimension(array: Array, axes: tuple[str, ...]) -> int:
    """The dimension that is laid over all these mesh axes; -1 if there is none."""
    return next((d for d, over in enumerate(array.axes or ()) if set(axes) <= set(over)), -1)


def _targets(
    array: Array, axes: tuple[str, ...], source: int, rank: int, sizes: Mapping[str, int]
) -> list[int]:
    """Other dimensions of the gradient that the axes divide: those not sharded yet, else the others."""
    first = len(array.shape) - rank
    legal = [
        (d, over)
        for d, over in enumerate(array.axes or ())
        if d >= first and d != source and array.shape[d] % math.prod([sizes[a] for a in (*over, *axes)]) == 0
    ]
    return [d for d, over in legal if not over] or [d for d, _ in legal]


def _prediction(findings: Sequence[Finding]) -> Prediction:
    return Prediction(
        sites=sum(f.places for f in findings),
        saved_bytes=_total(f.saved_bytes for f in findings),
        saved_seconds=_total(f.saved_seconds for f in findings),
    )


def _total(values: Iterable[Any]) -> Any:
    known = list(values)
    return None if not known or None in known else sum(known)


def _changes(told: Mapping[str, Any]) -> dict[str, MeshAxes]:
    """Logical rules as they were before JSON made lists of their tuples."""
    return {name: tuple(cast("list[str]", v)) if isinstance(v, list) else v for name, v in told.items()}


def _verdict(what: str, refusal: str | None) -> str:
    return what if refusal is None else f"left as it is: {refusal}"


def _updated(told: Mapping[str, Any]) -> Updated:
    return Updated(
        parameter=told["parameter"],
        shape=tuple(told["shape"]),
        refusal=told["refusal"],
        proof=tuple(told["proof"]),
    )


def _array(leaf: Mapping[str, Any]) -> Array:
    axes = leaf["axes"]
    return Array(
        name=leaf["name"],
        shape=tuple(leaf["shape"]),
        axes=None if axes is None else tuple(map(tuple, axes)),
        donated=leaf["donated"],
        twins=tuple(leaf["twins"]),
    )
