"""hloscope's times beside published ones, measured on a v6e, and beside what others say of the same programs.

    python benchmarks/published_times.py            # needs jax and libtpu, no TPU; about a minute

The published kernels are others' of the same work; here they are compared with this repository's.
Nothing was fitted on any of these times: transfers are at the published rate of the HBM, instructions at the clock, one
after the other. `counted` is what `hloscope analyze` says, from the module alone; `hloscope` and the kernels have the
bundles of their machine code, as in `hloscope kernel`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = Path(__file__).with_name("published_steps.py")
WORKS = ("unsort", "forward", "backward")
# ms on v6e, bfloat16, 225,280 rows: XLA over all of them, a kernel over 126,156 valid ones.
PUBLISHED = {"unsort": (4.71, 2.61), "forward": (1.08, 0.61), "backward": (1.92, 1.02)}
CLOCK = 1.75e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds by hloscope, and by others of XLA's program; None where they have none."""

    xla: float
    counted: float
    kernel: float
    bound_by: str
    cost_analysis: float | None
    estimated_cycles: float | None
    roofline: float | None

    @property
    def ratio(self) -> float:
        """The kernel's time over XLA's."""
        return self.kernel / self.xla


def measure(work: str, others: dict[str, dict[str, float | None]]) -> Times:
    """Compile both programs of one work and ask for their times."""
    from hloscope.analysis.bundle import Analyses
    from hloscope.capture import capture_step
    from hloscope.devices import chips
    from hloscope.hlo import read_hlo
    from hloscope.report.kernel import load_kernel

    (fusion,) = load_kernel(f"{STEPS}:{work}_xla").fusions
    (kernel,) = load_kernel(f"{STEPS}:{work}_kernel").kernels
    module = read_hlo(capture_step(f"{STEPS}:{work}_xla", kernels=True).hlo_path).module
    costs = Analyses(module, chip=chips()["v6e"]).costs
    seconds = [costs.of(i).seconds for c in module.control_computations for i in c.instructions]
    if fusion.seconds is None or kernel.seconds is None or None in seconds:
        sys.exit(f"{work}: something has no time")
    return Times(
        xla=fusion.seconds,
        counted=sum(s or 0.0 for s in seconds),
        kernel=kernel.seconds,
        bound_by=kernel.bound_by or "unknown",
        **others[work],
    )


def ask_others() -> dict[str, dict[str, float | None]]:
    """What XLA's cost analysis, its estimated cycles and jax's roofline say, in a process of its own."""
    from hloscope.capture.launch import worker_environment

    asked = subprocess.run(
        [sys.executable, __file__, "--others"],
        capture_output=True,
        text=True,
        check=False,
        env=worker_environment(),
    )
    if asked.returncode:
        sys.exit(asked.stderr)
    return json.loads(asked.stdout.splitlines()[-1])


def others() -> dict[str, dict[str, float | None]]:
    """The worker's side of `ask_others`."""
    import re

    import numpy as np

    jax: Any = importlib.import_module("jax")
    roofline: Any = importlib.import_module("jax.experimental.roofline")
    from hloscope.capture import Topology
    from hloscope.devices import chips

    sys.path.insert(0, str(STEPS.parent))
    works = importlib.import_module("published_steps").XLA
    device = Topology("v6e:2x2").devices[0]
    mesh = jax.sharding.Mesh(np.array([device]), ("x",))
    here = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    speed = chips()["v6e"].hbm_bytes_per_second
    found: dict[str, dict[str, float | None]] = {}
    for name, (function, operands) in works.items():
        placed = [jax.ShapeDtypeStruct(o.shape, o.dtype, sharding=here) for o in operands]
        compiled = jax.jit(function).lower(*placed).compile()
        analysis: dict[str, float] = dict(compiled.cost_analysis() or {})
        # The sentinel of the largest integer stands for "no estimate".
        cycles = [
            int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text()) if len(n) < 18
        ]
        flops_bytes = None
        with (
            contextlib.suppress(NotImplementedError, ValueError, TypeError),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            _, result = roofline.roofline(function)(*operands)
            flops_bytes = result.unfused_hbm_bytes
        found[name] = {
            "cost_analysis": analysis.get("bytes accessed", 0.0) / speed or None,
            "estimated_cycles": sum(cycles) / CLOCK if cycles else None,
            "roofline": flops_bytes / speed if flops_bytes else None,
        }
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--others", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().others:
        print(json.dumps(others()))
        return
    known = ask_others()
    print(f"{'v6e, ms':10}{'published':>10}{'hloscope':>10}{'error':>8}{'counted':>10}{'error':>8}", end="")
    print(f"{'cost_analysis':>16}{'error':>8}{'est. cycles':>13}{'error':>8}{'roofline':>10}{'error':>8}")
    times = {work: measure(work, known) for work in WORKS}
    for work, time in times.items():
        published = PUBLISHED[work][0]
        print(f"{work:10}{published:10.2f}{time.xla * 1e3:10.3f}{_error(time.xla, published)}", end="")
        print(_beside(time.counted, published, 10), end="")
        print(
            f"{_beside(time.cost_analysis, published, 16)}{_beside(time.estimated_cycles, published, 13)}",
            end="",
        )
        print(_beside(time.roofline, published, 10))
    for work, time in times.items():
        published = PUBLISHED[work][1]
        print(f"{work:10}{published:10.2f}{time.kernel * 1e3:10.3f}{_error(time.kernel, published)}", end="")
        print(f"   kernel at 56 % valid rows, bound by {time.bound_by}")
    for work, time in times.items():
        whole, part = PUBLISHED[work]
        print(
            f"{work:10}{part / whole:10.3f}{time.ratio:10.3f}{_error(time.ratio * 1e-3, part / whole)}   kernel / XLA"
        )


def _error(seconds: float, published_ms: float) -> str:
    return f"{100 * (seconds * 1e3 / published_ms - 1):+6.1f} %"


def _beside(seconds: float | None, published_ms: float, width: int) -> str:
    if seconds is None:
        return f"{'none':>{width}}{'':8}"
    return f"{seconds * 1e3:{width}.3f}{_error(seconds, published_ms)}"


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
