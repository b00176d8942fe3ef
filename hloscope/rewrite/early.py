"""Work that does not need a loop, done before it: what it reads need not wait for the loop to end.

The compiler may put it on either side. Where an operand is large, is no argument, and is read by nothing in or behind
the loop, doing it late keeps the operand alive through every trip. A barrier that the loop and the result pass
together puts it before; no value changes.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from jax import lax

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.plan import BeforeLoop
from hloscope.rewrite import jaxprs
from hloscope.rewrite.order import CycleError, needed_by, operands, reached_from, sorted_equations
from hloscope.rewrite.rows import xla_shape
from hloscope.rewrite.traced import Traced

# What reads much and gives little: sums over many rows, as a parameter's gradient is.
_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
# What only hands the result on, so that the compiler may lay it out and add it up as its reader wants.
_HANDING_ON = frozenset(
    {"transpose", "reshape", "squeeze", "convert_element_type", "sharding_constraint", "copy"}
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Early:
    """A contraction that can be done before a loop.

    Attributes:
      key: stable from run to run: primitive, type of the result, source line.
      scan: the loop.
      result: what stands for it: behind transposes and casts.
      waiting: operands that die with it, as XLA writes their types.
      where: `file:line`.
    """

    key: str
    scan: Any
    result: Any
    waiting: tuple[str, ...]
    where: str | None

    @property
    def proof(self) -> tuple[str, ...]:
        """Why it can be done early, and what that spares, in lines."""
        loop = jaxprs.source_line(self.scan)
        return (
            f"nothing of it depends on the loop of {self.scan.params['length']} trips"
            + (f"  ({loop})" if loop else ""),
            f"{', '.join(self.waiting)} dies with it: nobody else reads it in or behind the loop",
        )


def early_work(step: Step) -> list[Early]:
    """The contractions of a step that can be done before a loop, and whose operands die there. Traces the step."""
    traced = Traced.of(step)
    return _together(jaxprs.flatten(traced.closed), traced)


def do_early(step: Step, action: BeforeLoop) -> Step:
    """The step with an action's work before its loops. Raises UserError if the step has no such work."""
    traced = Traced.of(step)
    flat = jaxprs.flatten(traced.closed)
    found = _together(flat, traced)
    known = {each.key for each in found}
    for key in action.work:
        if key not in known:
            raise UserError(f"the plan no longer fits: {action.title}: no loop has {key} waiting behind it")
    chosen = [each for each in found if each.key in action.work]
    return traced.step_of(lowering.within(traced.mesh, lambda: _tied(flat, chosen)))


def _together(flat: Any, traced: Traced) -> list[Early]:
    """The early work of a program that can all be done early at once: what needs other early work of its loop, or a
    loop that waits for it, is left where it is."""
    found: list[Early] = []
    for each in _find(jaxprs.opened(flat)):
        tried = [*found, each]
        try:
            lowering.within(traced.mesh, lambda tried=tried: _tied(flat, tried))
        except CycleError:
            continue
        found = tried
    return found


def _find(body: Any) -> Iterator[Early]:
    readers: dict[Any, list[Any]] = defaultdict(list)
    for equation in body.eqns:
        for var in dict.fromkeys(operands(equation)):
            readers[var].append(equation)
    results = {atom for atom in body.outvars if not jaxprs.is_literal(atom)}
    made = {var for equation in body.eqns for var in equation.outvars}
    taken: set[int] = set()
    for scan in body.eqns:
        if scan.primitive.name != "scan" or scan.params["length"] < 2 or not operands(scan):
            continue
        fixed = reached_from(scan, body.eqns) | needed_by(operands(scan), body.eqns)
        behind = reached_from(scan, body.eqns)
        for work in body.eqns:
            if work.primitive.name not in _CONTRACTIONS or id(work) in fixed or id(work) in taken:
                continue
            dying = [
                var
                for var in dict.fromkeys(operands(work))
                if var in made - results and not any(id(reader) in behind for reader in readers[var])
            ]
            if sum(map(_bytes, dying)) > _bytes(work.outvars[0]):
                taken.add(id(work))
                yield _early(work, scan, dying, readers)


def _early(work: Any, scan: Any, dying: Sequence[Any], readers: dict[Any, list[Any]]) -> Early:
    source = jaxprs.source_line(work)
    shape = xla_shape(work.outvars[0])
    result = work.outvars[0]
    while len(readers[result]) == 1 and readers[result][0].primitive.name in _HANDING_ON:
        result = readers[result][0].outvars[0]
    return Early(
        key="/".join([work.primitive.name, shape, PurePath(source).name if source else "unknown"]),
        scan=scan,
        result=result,
        waiting=tuple(map(xla_shape, dying)),
        where=source,
    )


def _bytes(var: Any) -> int:
    return var.aval.size * var.aval.dtype.itemsize


def _tied(flat: Any, chosen: Sequence[Early]) -> Any:
    """The program with each loop and its early work behind one barrier."""
    body = jaxprs.opened(flat)
    by_scan: dict[int, list[Early]] = defaultdict(list)
    for each in chosen:
        by_scan[id(each.scan)].append(each)
    names: dict[Any, Any] = {}
    added: list[Any] = []
    for early in by_scan.values():
        scan = early[0].scan
        start = _carried(scan)
        tied = [start, *(each.result for each in early)]
        fresh = [jaxprs.fresh(var) for var in tied]
        added += jaxprs.traced_like(scan, lambda *given: lax.optimization_barrier(given), tied, fresh)
        names |= dict(zip(tied[1:], fresh[1:], strict=True))
        names[id(scan)] = (start, fresh[0])
    barriers = {id(equation) for equation in added}
    equations = [each if id(each) in barriers else _reading(each, names) for each in (*body.eqns, *added)]
    outputs = [atom if jaxprs.is_literal(atom) else names.get(atom, atom) for atom in body.outvars]
    closed = jaxprs.rebuilt(flat, equations=equations, outputs=outputs)
    return jaxprs.rebuilt(closed, equations=sorted_equations(equations, jaxprs.opened(closed)))


def _carried(scan: Any) -> Any:
    """An operand of the loop for it to wait for: the first that it carries, else any."""
    consts, carried = jaxprs.scan_counts(scan)
    own = [*scan.invars[consts : consts + carried], *scan.invars]
    return next(atom for atom in own if not jaxprs.is_literal(atom))


def _reading(equation: Any, names: dict[Any, Any]) -> Any:
    own = dict(names)
    if id(equation) in names:
        old, new = names[id(equation)]
        own[old] = new
    given = [atom if jaxprs.is_literal(atom) else own.get(atom, atom) for atom in equation.invars]
    return equation.replace(invars=given)
