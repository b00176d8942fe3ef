"""How a user names the step to look at: the `@step` decorator and what a decorated builder returns.

Nothing here imports jax: a step file is read for its builders before any of them runs.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from hloscope.errors import UserError

if TYPE_CHECKING:
    from hloscope.plan import MeshAxes

_EXAMPLE = "tpu7x:4x4x4"
_MARK = "__hloscope_step__"

OptionValue = bool | int | float | str
Builder = TypeVar("Builder", bound="Callable[..., Step]")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What `@step` leaves on a builder: the name to ask for it by, and the topology to compile for.

    `rules`, where given, are the logical axis rules that the builder is called with, after the topology, and
    `rule_sets` changes to them that are worth a try, by name.
    """

    name: str
    topology: str | None
    rules: Mapping[str, MeshAxes] | None = None
    rule_sets: Mapping[str, Mapping[str, MeshAxes]] = field(
        default_factory=dict[str, "Mapping[str, MeshAxes]"]
    )


@overload
def step(topology: Builder, /) -> Builder: ...
@overload
def step(
    topology: str | None = ...,
    *,
    name: str | None = None,
    rules: Mapping[str, MeshAxes] | None = None,
    rule_sets: Mapping[str, Mapping[str, MeshAxes]] | None = None,
) -> Callable[[Builder], Builder]: ...
def step(
    topology: Callable[..., Step] | str | None = None,
    *,
    name: str | None = None,
    rules: Mapping[str, MeshAxes] | None = None,
    rule_sets: Mapping[str, Mapping[str, MeshAxes]] | None = None,
) -> Callable[..., Any]:
    """Mark a function that takes an `hs.Topology` and returns a `Step`; it stays callable as it was.

    `topology` is the one to compile for unless another is asked for when capturing, as one must be where it
    is None; `name` is what follows the colon in `file.py:name`, the function's own name by default.

    `rules` map logical axis names to mesh axes (a name, several, or None). A builder that has them is called
    with them as its second argument and makes its shardings from them, so that `hloscope apply-rules` can
    try others; `rule_sets` offers changes to them, by name.
    """
    if callable(topology):
        return _mark(topology, None, None, None, None)
    if not isinstance(topology, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"@step takes a topology name such as {_EXAMPLE!r}, got {topology!r}")
    _check_rule_sets(rules, rule_sets)

    def mark(builder: Builder) -> Builder:
        return _mark(builder, topology, name, rules, rule_sets)

    return mark


def _mark(
    builder: Builder,
    topology: str | None,
    name: str | None,
    rules: Mapping[str, MeshAxes] | None,
    rule_sets: Mapping[str, Mapping[str, MeshAxes]] | None,
) -> Builder:
    own_name = getattr(builder, "__name__", type(builder).__name__)
    spec = StepSpec(name=name or own_name, topology=topology, rules=rules, rule_sets=rule_sets or {})
    setattr(builder, _MARK, spec)
    return builder


def _check_rule_sets(
    rules: Mapping[str, MeshAxes] | None, rule_sets: Mapping[str, Mapping[str, MeshAxes]] | None
) -> None:
    for name, changes in (rule_sets or {}).items():
        if unknown := sorted(set(changes) - set(rules or {})):
            raise UserError(f"@step: the rule set {name!r} changes {unknown[0]!r}, which is not in rules")


def step_spec(value: object) -> StepSpec | None:
    """What `@step` left on a value; None if the value is not a decorated builder."""
    spec = getattr(value, _MARK, None) if callable(value) else None
    return spec if isinstance(spec, StepSpec) else None


@dataclass(frozen=True, slots=True)
class Step:
    """One training step to compile: a function and the shapes it is called with.

    `args` and `kwargs` hold what `fn` is called with: pytrees of `jax.ShapeDtypeStruct` with shardings over
    the topology's devices, and plain values at `static_argnums`. A `fn` that is a `jax.jit` function already
    is used as it is: donation, static arguments and shardings are then that function's own and must not be
    given again.

    `compiler_options` are XLA options by name, as for `jax.stages.Lowered.compile`.
    `valid_fraction` is the share of a ragged buffer's rows, above 0 and at most 1, that the user knows to
    hold tokens; None if unknown.
    `sample` makes values to run the step with, `sample(seed)` giving what `args` stands for; where it is
    None, values are drawn from the shapes (see `hloscope.rewrite.inputs`).

    Raises `UserError` when a field cannot be right.
    """

    fn: Callable[..., Any]
    _: KW_ONLY
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    donate_argnums: int | Sequence[int] = ()
    static_argnums: int | Sequence[int] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    compiler_options: Mapping[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    valid_fraction: float | None = None
    sample: Callable[[int], Sequence[Any]] | None = None

    def __post_init__(self) -> None:
        _check_function(self)
        _check_arguments(self)
        donated = _argnums("donate_argnums", self.donate_argnums, len(self.args))
        static = _argnums("static_argnums", self.static_argnums, len(self.args))
        if both := sorted(set(donated) & set(static)):
            raise UserError(f"Step: argument {both[0]} cannot be both static and donated")
        object.__setattr__(self, "donate_argnums", donated)
        object.__setattr__(self, "static_argnums", static)
        _check_options(self.compiler_options)
        _check_valid_fraction(self.valid_fraction)

    @property
    def is_jitted(self) -> bool:
        """Whether `fn` is a `jax.jit` function already."""
        return hasattr(self.fn, "lower")

    def jit(self) -> Any:
        """The step as a `jax.jit` function, to run or to lower: with its donation, static arguments, shardings and
        compiler options. `fn` itself where that is one already.

        Imports jax. Raises `UserError` where `fn` is a `jax.jit` function and there are compiler options, which it
        cannot take on any more.

        Examples:
            >>> import hloscope as hs
            >>> step = hs.Step(lambda x: x + 1, args=(1,), static_argnums=0)
            >>> int(step.jit()(2))
            3
        """
        if self.is_jitted:
            if self.compiler_options:
                raise UserError(
                    "Step: fn is a jax.jit function already; to run it with compiler_options give them to jax.jit"
                )
            return self.fn
        shardings = {"in_shardings": self.in_shardings, "out_shardings": self.out_shardings}
        jax: Any = importlib.import_module("jax")
        return jax.jit(
            self.fn,
            donate_argnums=self.donate_argnums,
            static_argnums=self.static_argnums,
            compiler_options=dict(self.compiler_options) or None,
            **{name: value for name, value in shardings.items() if value is not None},
        )


def _check_function(step: Step) -> None:
    if not callable(step.fn):
        raise UserError(f"Step: fn must be a function, got {type(step.fn).__name__}")
    if not step.is_jitted:
        return
    for name in ("donate_argnums", "static_argnums", "in_shardings", "out_shardings"):
        value = getattr(step, name)
        if value is not None and value != ():
            raise UserError(f"Step: fn is a jax.jit function already; give {name} to jax.jit, not to Step")


def _check_arguments(step: Step) -> None:
    # A lone ShapeDtypeStruct, or a dict of parameters, is the usual slip.
    if not isinstance(cast(object, step.args), (tuple, list)):
        raise UserError(
            f"Step: args must be a tuple with one entry per argument, got {type(step.args).__name__}; "
            "write args=(x,) for a single argument"
        )
    if not isinstance(cast(object, step.kwargs), Mapping):
        raise UserError(f"Step: kwargs must be a mapping, got {type(step.kwargs).__name__}")


def _argnums(name: str, value: int | Sequence[int], count: int) -> tuple[int, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    try:
        numbers = [operator.index(cast(int, v)) for v in values]
    except TypeError:
        raise UserError(f"Step: {name} must be positions of arguments, got {value!r}") from None
    for number in numbers:
        if not -count <= number < count:
            raise UserError(f"Step: {name} names argument {number}, but args has {count}")
    return tuple(sorted({number % count for number in numbers}))


def _check_options(options: object) -> None:
    if not isinstance(options, Mapping):
        raise UserError(f"Step: compiler_options must be a mapping, got {type(options).__name__}")
    for key, value in cast("Mapping[object, object]", options).items():
        if not isinstance(key, str) or not isinstance(value, (bool, int, float, str)):
            raise UserError(f"Step: compiler option {key!r} must be a bool, number or string, got {value!r}")
        if key.startswith("xla_dump_"):
            raise UserError(f"Step: compiler option {key} is hloscope's own; leave it out")


def _check_valid_fraction(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise UserError(f"Step: valid_fraction must be above 0 and at most 1, got {value!r}")
