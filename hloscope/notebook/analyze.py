"""`hs.analyze`: a step of this process in, a report out. The compiler runs in a worker, so that only that can die."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hloscope.capture import capture_packed
from hloscope.capture.parcel import pack
from hloscope.capture.step import Step, step_spec
from hloscope.capture.topology import Topology
from hloscope.errors import UserError
from hloscope.notebook.progress import progress
from hloscope.plan import Plan
from hloscope.report.build import build_report, check_valid_fraction
from hloscope.report.target import open_artifact

if TYPE_CHECKING:
    from hloscope.report.model import Report


def analyze(
    step: Callable[..., Any] | Step,
    /,
    *args: Any,
    topology: str | Topology | None = None,
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    plan: Plan | None = None,
    valid_fraction: float | None = None,
    chip_figures: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fresh: bool = False,
    timeout: float | None = None,
    quiet: bool = False,
) -> Report:
    """Compile a step that is defined here (a notebook's cell, a script) for a topology, and report on it.

    `step` is a function with the `args` and `kwargs` that it is called with (arrays, of which only shapes and
    shardings are used, or `jax.ShapeDtypeStruct`), an `hs.Step`, or a builder marked with `@hs.step`. Arguments
    that are sharded over a mesh of host devices lie on the same mesh of the topology; without any sharding the
    step is compiled for one device. `plan` is applied to the step. `fresh` compiles even if an unchanged step was
    compiled before, `timeout` is in seconds, `quiet` tells no progress; the rest is as in `hs.load`.

    Nothing runs here: what the step is made of is sent to a worker process, which traces and compiles it.

    Raises UserError if the step or an option is wrong, CompileError if the compiler fails or dies; where it left a
    dump, `hs.load(error.dump_dir)` reports on that.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import hloscope as hs
        >>> def step(weights, batch):
        ...     loss = lambda w: ((batch @ w) ** 2).mean()
        ...     return weights - jax.grad(loss)(weights)
        >>> weights = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
        >>> batch = jax.ShapeDtypeStruct((64, 512), jnp.bfloat16)
        >>> report = hs.analyze(step, weights, batch, topology="v5e:2x2", donate_argnums=0, quiet=True)
        >>> report.memory.argument_bytes == 2 * (512 * 512 + 64 * 512)
        True
    """
    check_valid_fraction(valid_fraction)
    told = {"donate_argnums": donate_argnums, "static_argnums": static_argnums}
    whole = _step(step, args, kwargs or {}, {name: value for name, value in told.items() if value != ()})
    packed = pack(whole)
    named = topology.name if isinstance(topology, Topology) else topology or packed.topology
    if named is None:
        raise UserError(f"{packed.name}: tell what to compile for, e.g. topology='tpu7x:4x4x4'")
    with progress(quiet=quiet) as on_event:
        artifact = capture_packed(
            packed, topology=named, timeout=timeout, fresh=fresh, plan=plan, on_event=on_event
        )
    return build_report(
        open_artifact(artifact, packed.name),
        topology=named,
        valid_fraction=valid_fraction,
        chip_figures=chip_figures,
        select=select,
        ignore=ignore,
    )


def _step(
    step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], told: Mapping[str, Any]
) -> Step | Callable[..., Step]:
    """What is to be compiled, as files name it. UserError for arguments that it has no place for."""
    if isinstance(step, str):
        raise UserError(f"hs.analyze takes a function; hs.load({step!r}) reads step files and dumps")
    if not isinstance(step, Step) and step_spec(step) is None:
        return Step(step, args=args, kwargs=kwargs, **told)
    if args or kwargs or told:
        kind = "an hs.Step" if isinstance(step, Step) else "a function marked with @hs.step"
        raise UserError(
            f"{kind} has its arguments already: hs.analyze(step, topology=...) takes no others for it"
        )
    return step
