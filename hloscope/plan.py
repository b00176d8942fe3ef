"""A plan: what is to be changed in a step before it is compiled, as a value, as TOML, and as JSON.

Nothing here imports jax. What an action does to a step is in `hloscope.rewrite`; which actions are worth
trying, and what came of them, in `hloscope.planner`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from hloscope.errors import UserError
from hloscope.files import read_toml, write_whole

# Raised when an older hloscope could no longer read what is written.
FORMAT = 1

# What a logical axis is laid over: one mesh axis, several, or none.
MeshAxes = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidRows:
    """Run these clusters of row-wise work over valid rows only, as kernels.

    `clusters` are keys of `hloscope.rewrite.rows.find_row_clusters`.
    """

    kind: ClassVar[str] = "valid-rows"
    clusters: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return f"valid-row kernels for {len(self.clusters)} cluster{'s' * (len(self.clusters) != 1)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopUpdate:
    """Let the loop that makes the gradients of these stacked parameters update them, layer by layer.

    `parameters` are names (argument and pytree path, `state.params['wo']`); what an optimizer keeps for a parameter is
    updated with it.
    """

    kind: ClassVar[str] = "loop-update"
    parameters: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it does, in one line."""
        one = len(self.parameters) == 1
        return f"{self.parameters[0] if one else f'{len(self.parameters)} parameters'} updated in the backward loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeLoop:
    """Do work before a loop that it does not depend on, so that what it reads does not wait for the loop to end.

    `work` are keys of `hloscope.rewrite.early.early_work`.
    """

    kind: ClassVar[str] = "before-loop"
    work: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return f"{', '.join(self.work)} before the loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAxis:
    """Shard another dimension of a parameter over some mesh axes: dimension `target` in place of `source`.

    `parameter` is its name (argument and pytree path, `state.params['wo']`), `shape` its global shape, by
    which a plan that has gone stale is known. All that shares the parameter's place moves with it.
    """

    kind: ClassVar[str] = "mesh"
    parameter: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    source: int
    target: int

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return (
            f"{self.parameter}: {' and '.join(self.axes)} over dimension {self.target}, not {self.source},"
            f" of {list(self.shape)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRules:
    """Lay logical axes over other mesh axes: changes to the rules that the step's builder is called with."""

    kind: ClassVar[str] = "rules"
    name: str
    changes: Mapping[str, MeshAxes]

    @property
    def title(self) -> str:
        """What it does, in one line."""
        return f"rule set {self.name}: " + ", ".join(f"{k} → {_axes(v)}" for k, v in self.changes.items())


Action = ValidRows | BeforeLoop | LoopUpdate | MoveAxis | LogicalRules
_KINDS: dict[str, type[Action]] = {
    cls.kind: cls for cls in (ValidRows, BeforeLoop, LoopUpdate, MoveAxis, LogicalRules)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Actions, in the order in which they are applied, and the step and topology that they were found for.

    `step` and `topology` are for people: a plan fits any step that has what its actions name.
    """

    actions: tuple[Action, ...] = ()
    step: str | None = None
    topology: str | None = None

    def rules(self, rules: Mapping[str, MeshAxes]) -> dict[str, MeshAxes]:
        """Logical rules with the plan's changes, for a trainer that builds its shardings from them.

        Raises UserError if the plan changes a rule that there is not.
        """
        changed = dict(rules)
        for action in self.actions:
            if isinstance(action, LogicalRules):
                changed |= checked_changes(action, changed)
        return changed

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan. Raises UserError if the file is none."""
        try:
            return from_fields(read_toml(path, f"the plan {path}"))
        except ValueError as error:
            raise UserError(f"{path} is no plan of hloscope: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all. Raises UserError if that cannot be done."""
        import tomli_w

        write_whole(path, [tomli_w.dumps(to_fields(self)).encode()], "the plan")


def checked_changes(action: LogicalRules, rules: Mapping[str, MeshAxes]) -> dict[str, MeshAxes]:
    """The action's changes. Raises UserError if they name a rule that there is not."""
    for name in action.changes:
        if name not in rules:
            raise UserError(
                f"the plan no longer fits: {action.title}: there is no logical axis {name!r};"
                f" there are {', '.join(sorted(rules)) or 'none'}"
            )
    return dict(action.changes)


def to_fields(plan: Plan) -> dict[str, Any]:
    """The plan as values that TOML and JSON have."""
    fields: dict[str, Any] = {"format": FORMAT}
    fields |= {name: value for name in ("step", "topology") if (value := getattr(plan, name)) is not None}
    return fields | {"action": [action_fields(a) for a in plan.actions]}


def action_fields(action: Action) -> dict[str, Any]:
    """One action as values that TOML and JSON have; a logical axis over no mesh axis has an empty list."""
    names = action.__dataclass_fields__
    return {"kind": action.kind} | {name: _plain(getattr(action, name)) for name in names if name != "kind"}


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        rules = cast("Mapping[str, MeshAxes]", value)
        return {k: [v] if isinstance(v, str) else list(v or ()) for k, v in rules.items()}
    return list(cast("Sequence[object]", value)) if isinstance(value, tuple) else value


def from_fields(fields: object) -> Plan:
    """The reverse of `to_fields`. Raises ValueError for what is no plan."""
    if not isinstance(fields, Mapping):
        raise ValueError("it has no fields")
    values = dict(cast("Mapping[str, Any]", fields))
    written = values.pop("format", None)
    if written != FORMAT:
        raise ValueError(f"its format is {written!r}, this hloscope reads {FORMAT}")
    actions = values.pop("action", [])
    if not isinstance(actions, list):
        raise ValueError("its actions are no list")
    if unknown := set(values) - {"step", "topology"}:
        raise ValueError(f"it has an unknown field {min(unknown)!r}")
    for name, value in values.items():
        _expect(isinstance(value, str), name, value)
    return Plan(actions=tuple(_action(a) for a in cast("list[object]", actions)), **values)


def _action(value: object) -> Action:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is no action")
    fields = dict(cast("Mapping[str, Any]", value))
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"there is no kind of action {kind!r}; there are {', '.join(_KINDS)}")
    cls = _KINDS[kind]
    names = {name for name in cls.__dataclass_fields__ if name != "kind"}
    if set(fields) != names:
        wrong = [f"an unknown field {n!r}" for n in sorted(set(fields) - names)]
        wrong += [f"no {n!r}" for n in sorted(names - set(fields))]
        raise ValueError(
            f"an action {kind!r} has {' and '.join(wrong)}: its fields are {', '.join(sorted(names))}"
        )
    return cls(**{name: _field(name, value) for name, value in fields.items()})


def _field(name: str, value: Any) -> Any:
    """One field of an action, of the type that it must have."""
    # It would change nothing, and nobody would be told; only a shape may be empty.
    _expect(name == "shape" or value not in ([], (), {}), name, value)
    if name in ("clusters", "work", "parameters", "axes"):
        return _tuple_of(str, name, value)
    if name == "shape":
        return _tuple_of(int, name, value)
    if name == "changes":
        _expect(isinstance(value, Mapping), name, value)
        rules = {k: _tuple_of(str, name, v) for k, v in value.items()}
        return {k: None if not v else v[0] if len(v) == 1 else v for k, v in rules.items()}
    _expect(isinstance(value, int if name in ("source", "target") else str), name, value)
    _expect(not isinstance(value, bool), name, value)
    return value


def _tuple_of(kind: type, name: str, value: Any) -> tuple[Any, ...]:
    _expect(isinstance(value, list | tuple), name, value)
    values = tuple(cast("Sequence[object]", value))
    _expect(all(isinstance(v, kind) for v in values), name, value)
    return values


def _expect(holds: bool, name: str, value: object) -> None:
    if not holds:
        raise ValueError(f"its {name} cannot be {value!r}")


def _axes(value: MeshAxes) -> str:
    return "no axis" if value is None else value if isinstance(value, str) else " and ".join(value)
