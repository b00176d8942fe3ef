"""Row kernels against XLA's fusions as they stand in a layer, not alone: time by hloscope's estimate, no TPU needed.

    python benchmarks/layer_static.py               # v6e and tpu7x, half a minute

Alone, the gradient of a gated linear unit is one fusion. Between grouped matmuls XLA makes two of it, as both halves
are wanted in one buffer: one that writes the halves, and one that puts them side by side. `layer_steps.py` has the
layer, plain and with kernels.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import layer_steps

import hloscope as hs

TOPOLOGIES = ["v6e:2x2", "tpu7x:2x2x1"]
# Which families of the plain layer, by name and phase, which kernel stands for.
WORK = {
    "GLU forward": ((("activation", "forward"),), (("glu_rows_silu", "forward"),)),
    "GLU recompute and gradient": (
        (("activation", "recompute"), ("activation", "backward"), ("concatenate", "backward")),
        (("glu_rows_silu", "recompute"), ("glu_rows_bwd_silu", "backward")),
    ),
    "unsort gradient": ((("unsort", "backward"),), (("unsort_bwd_rows", "backward"),)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What families of a layer take together."""

    count: int
    bytes: int
    seconds: float


def sum_of(report: hs.Report, wanted: tuple[tuple[str, str], ...]) -> Sum:
    """The families of these names (or that have them in theirs, as a differentiated kernel's) and phases."""
    found = [
        (family, time)
        for family, time in zip(report.census.families, report.time.families, strict=True)
        if any(name in family.family and phase == family.phase for name, phase in wanted)
    ]
    if not found or any(family.bytes is None or time.seconds is None for family, time in found):
        sys.exit(f"{report.target.topology}: {wanted} is not there, or has no time")
    return Sum(
        count=sum(family.count for family, _ in found),
        bytes=sum(family.bytes or 0 for family, _ in found),
        seconds=sum(time.seconds or 0.0 for _, time in found),
    )


def main(topologies: list[str]) -> None:
    """Print a table for each topology."""
    for topology in topologies or TOPOLOGIES:
        plain, kernels = (
            hs.load(f"{layer_steps.__file__}:{name}", topology=topology) for name in ("plain", "kernels")
        )
        print(f"\n{topology:28}{'XLA':>28}{'kernels':>28}{'bytes':>9}{'time':>7}")
        for work, (fusions, theirs) in WORK.items():
            before, after = sum_of(plain, fusions), sum_of(kernels, theirs)
            print(
                f"{work:28}{_words(before):>28}{_words(after):>28}"
                f"{before.bytes / after.bytes:8.2f}x{before.seconds / after.seconds:6.2f}x"
            )


def _words(found: Sum) -> str:
    return f"{found.count} · {found.bytes / 1e9:.2f} GB · {found.seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
