"""Dead rows of a training step: the work on them, the proof, and valid-row kernels in its place."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from hloscope.capture import lowering
from hloscope.capture.step import Step
from hloscope.errors import UserError
from hloscope.rewrite import jaxprs
from hloscope.rewrite.analysis import Found, Program, analyze
from hloscope.rewrite.kernels import kernels_as as kernels_as
from hloscope.rewrite.splicing import splice
from hloscope.rewrite.traced import Traced

# XLA options under which a CPU computes a step and its rewritten form operation by operation, so that equal
# arithmetic gives equal bits: fusing other operations together rounds differently.
BITWISE_OPTIONS: Mapping[str, int | str] = {
    "xla_backend_optimization_level": 0,
    "xla_disable_hlo_passes": "fusion,cpu-instruction-fusion,multi-output-fusion,algsimp,reshape-mover",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCluster:
    """Row-wise work on a ragged buffer.

    Attributes:
      key: stable from run to run: phase, kernel, shapes, source line. Clusters alike share it.
      phase: forward, recompute or backward.
      kernel: what takes its place: glu_rows, glu_rows_bwd, unsort_bwd_rows or valid_rows.
      shapes: what it returns, as XLA writes it: bf16[32768,1536].
      source: `file:line` of the user's code, None if unknown.
      rows: rows of the buffer.
      bytes: read and written in one execution when every row is.
      executions: in one step; None where a loop's trips are unknown.
      proof: one line a step: why the rows behind the limit are dead, or where the proof broke.
      refusal: why it stays as it is; None if it can be replaced.
    """

    key: str
    phase: str
    kernel: str
    shapes: tuple[str, ...]
    source: str | None
    rows: int
    bytes: int
    executions: int | None
    proof: tuple[str, ...]
    refusal: str | None

    def explain(self) -> str:
        """The cluster and its proof, in lines."""
        verdict = f"kernel {self.kernel}" if self.refusal is None else f"left as it is: {self.refusal}"
        return "\n".join([f"{self.key}: {verdict}", *(f"    {line}" for line in self.proof)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAnalysis:
    """What was found in a step.

    Attributes:
      clusters: those that can be replaced, and those that cannot, with the reason.
      masks: `file:line` of gathers whose fill values only dead rows can hold; they go when clusters are replaced.
      wraps: `file:line` of selects that return one operand in every row, as those of indices that are never negative;
        they go likewise.
      recomputed: `file:line` of the first readers of row numbers that a loop saves though they follow from others.
    """

    clusters: tuple[RowCluster, ...]
    masks: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()

    @property
    def replaceable(self) -> tuple[RowCluster, ...]:
        """Clusters whose tails are proved dead and that a kernel can take."""
        return tuple(cluster for cluster in self.clusters if cluster.refusal is None)

    def explain(self) -> str:
        """Every verdict with its proof."""
        if not self.clusters:
            return "no ragged buffer found: nothing reads the rows of a matrix below a limit that is known"
        masks = [f"{mask}: a gather fills dead rows only: its mask is dropped" for mask in self.masks]
        wraps = [
            f"{wrap}: a select of indices takes one side in every row: it is dropped" for wrap in self.wraps
        ]
        again = [
            f"{reader}: row numbers follow from others that the loop saves: computed again"
            for reader in self.recomputed
        ]
        return "\n".join([*(cluster.explain() for cluster in self.clusters), *masks, *wraps, *again])


def find_row_clusters(step: Step) -> RowsAnalysis:
    """Row-wise work on ragged buffers in a step, and whether the rows behind the limit are dead.

    Imports jax and traces the step, in the mesh of its arguments.
    """
    program = analyze(Traced.of(step).closed)
    return RowsAnalysis(
        clusters=tuple(map(_cluster, program.found)),
        masks=_lines(program.masked),
        wraps=_lines(select for select, _ in program.settled),
        recomputed=_lines(each.reader for each in program.recomputed),
    )


def _lines(equations: Iterable[Any]) -> tuple[str, ...]:
    return tuple(jaxprs.source_line(equation) or "unknown" for equation in equations)


def rewrite_rows(step: Step, keys: Collection[str] | None = None) -> Step:
    """The step with valid-row kernels in the place of clusters; signature, shardings and donation stay.

    Args:
      step: what to rewrite; it is traced in the mesh of its arguments.
      keys: of the clusters to replace; None for all that can be.

    Returns:
      The rewritten step, or the same step where there is nothing to replace.

    Raises:
      UserError: a key is not among the step's clusters, or its cluster cannot be replaced.
    """
    traced = Traced.of(step)
    program = analyze(traced.closed)
    chosen = _chosen(program, keys)
    if not chosen:
        return step
    with_kernels = lowering.within(traced.mesh, lambda: splice(program, chosen))
    return traced.step_of(with_kernels)


def _chosen(program: Program, keys: Collection[str] | None) -> list[Found]:
    found = [(each, _cluster(each)) for each in program.found]
    if keys is None:
        return [each for each, cluster in found if cluster.refusal is None]
    refused = {cluster.key: cluster.refusal for _, cluster in found if cluster.refusal is not None}
    known = {cluster.key for _, cluster in found if cluster.refusal is None}
    for key in keys:
        if key not in known:
            why = refused.get(
                key, "the step has no such cluster; it may have changed since the plan was made"
            )
            raise UserError(f"row cluster {key} cannot be replaced: {why}")
    return [each for each, cluster in found if cluster.refusal is None and cluster.key in keys]


def _cluster(found: Found) -> RowCluster:
    group, anchor = found.group, found.anchor
    place = replace(found.place, path=(*found.place.path, str(jaxprs.name_stack(anchor))))
    shapes = tuple(xla_shape(sink) for sink in group.sinks)
    source = jaxprs.source_line(anchor)
    key = "/".join(
        [place.phase, found.choice.name, "+".join(shapes), PurePath(source).name if source else "unknown"]
    )
    return RowCluster(
        key=key,
        phase=place.phase,
        kernel=found.choice.name,
        shapes=shapes,
        source=source,
        rows=group.rows,
        bytes=group.bytes,
        executions=found.place.executions,
        proof=tuple(line for reason in found.proof for line in reason.lines()),
        refusal=found.refusal,
    )


_SHORT = {"bfloat16": "bf16", "float": "f", "int": "s", "uint": "u", "bool": "pred"}


def xla_shape(value: Any) -> str:
    """A type as XLA writes it."""
    dtype = str(value.aval.dtype)
    for long in ("bfloat16", "uint", "float", "int", "bool"):
        if dtype.startswith(long):
            dtype = _SHORT[long] + dtype.removeprefix(long)
            break
    return f"{dtype}[{','.join(map(str, value.aval.shape))}]"
