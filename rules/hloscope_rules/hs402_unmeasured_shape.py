"""HS402: a grouped matmul has a shape at which its implementation was not found to be the faster one."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.grouped import GroupedMatmul, grouped_matmuls
from hloscope.analysis.place import phase_of
from hloscope.analysis.regions import Problem, Region, problem_of, regions_of
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS402", name="shape-outside-region", severity=Severity.WARNING, needs="chip")
def shape_outside_region(analyses: Analyses) -> Iterable[Finding]:
    """A grouped matmul has a shape outside the region in which its implementation was found faster than another.

    ## What it does
    Holds the grouped matmuls of `hloscope_kernels.ragged_dot` and of XLA against the table of regions that comes with
    that package, by chip, operation, types and sizes: its kernels outside of every region of theirs, and XLA's within a
    region of another. Where the table rests on compiled modules and machine code only, not on times measured on the
    device, a finding is a remark. Other kernels, and chips on which nothing was compared, are left alone.

    ## Why is this bad
    No grouped matmul is the fastest everywhere: of one published kernel the speed was 0.53 to 3.40 times that of XLA's,
    by width and number of groups. Outside of the region somebody chose an implementation without a reason.

    ## Example
    ```hlo
    group = s32[35] parameter(0)
    tile = s32[35] parameter(1)
    lhs_tile = s32[35] parameter(2)
    weight = s32[35] parameter(3)
    edges = s32[11] parameter(4)
    x = bf16[4096,512] parameter(5)
    w = bf16[8,512,1024] parameter(6)
    ROOT ragged_dot.1 = bf16[4096,1024] custom-call(group, tile, lhs_tile, weight, edges, x, w), custom_call_target="tpu_custom_call"  // expect: HS402
    ```

    ## What to do
    Call `hloscope_kernels.ragged_dot` with `implementation="auto"`, which chooses by the same table, or time both at this
    shape (`python -m hloscope_kernels.ragged_dot.benchmark`) and put what was measured into it.

    ## Fix safety
    No automatic fix. Implementations add products in another order, so the last bits of a result may differ.
    """  # noqa: E501 - HLO has one instruction a line
    if analyses.chip is None:
        return
    families: dict[tuple[Problem, str], tuple[Region, list[GroupedMatmul]]] = {}
    for matmul in grouped_matmuls(analyses.module):
        problem = problem_of(matmul)
        region = None if problem is None else _better(problem, analyses.chip.name)
        if problem is not None and region is not None:
            key = (problem, phase_of(matmul.instruction).value)
            families.setdefault(key, (region, []))[1].append(matmul)
    for (problem, phase), (region, found) in families.items():
        yield _finding(analyses, problem, phase, region, found)


def _better(problem: Problem, chip: str) -> Region | None:
    """The region that speaks against the implementation in use: the nearest one of its own that does not cover the
    problem, or another's that does."""
    regions = regions_of(problem.operation, chip)
    if problem.implementation == "xla":
        return next((r for r in regions if not r.misses(problem)), None)
    own = [r for r in regions if r.implementation == problem.implementation]
    if any(not r.misses(problem) for r in own):
        return None
    return min(own, key=lambda r: len(r.misses(problem)), default=None)


def _finding(
    analyses: Analyses, problem: Problem, phase: str, region: Region, found: list[GroupedMatmul]
) -> Finding:
    misses = region.misses(problem)
    sizes = f"{problem.m} x {problem.k} x {problem.n}, {problem.groups} groups"
    where = "outside its region" if misses else f"in the region of {region.implementation}"
    why = "; ".join(misses) if misses else region.reason
    return fold(
        analyses,
        "HS402",
        Severity.WARNING if region.basis == "measured" else Severity.INFO,
        f"grouped matmul {sizes} by {problem.implementation}{in_phase(phase)}, {where}",
        [
            Site(instruction=g.instruction, moved=analyses.costs.of(g.instruction).hbm_bytes, saved=None)
            for g in found
        ],
        advice='let implementation="auto" of hloscope_kernels.ragged_dot choose, or time both at this shape',
        details=(why, f"{region.basis}: {region.source}"),
        facts={
            "implementation": problem.implementation,
            "operation": problem.operation,
            "basis": region.basis,
        },
    )
