"""HS307: a kernel reserves nearly all of VMEM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.matmuls import kernel_name
from hloscope.hlo import Instruction
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold

_VMEM = "1"


@rule(code="HS307", name="vmem-hog", severity=Severity.INFO, needs="memory")
def vmem_hog(analyses: Analyses, *, share: float = 0.75) -> Iterable[Finding]:
    """A kernel reserves nearly all of the VMEM that the step uses, so that nothing else can stay there while it runs.

    ## What it does
    Reads the scoped VMEM that each custom call reserves (a Pallas kernel's `vmem_limit_bytes`) and compares it with all
    the VMEM that the buffer assignment hands out.

    ## Why is this bad
    The compiler keeps small operands and the next layer's weights in VMEM across instructions. A kernel that reserves
    nearly all of it pushes them out to HBM, and a little more, after an upgrade or with another block size, does not
    compile any longer.

    ## Example
    ```hlo
    p = bf16[1024,1024] parameter(0)
    near = bf16[1024,1024]{1,0:S(1)} negate(p)
    ROOT y = bf16[1024,1024] custom-call(near), custom_call_target="tpu_custom_call", backend_config={"scoped_memory_configs": [{"memory_space": "1", "offset": "0", "size": "100000000"}]}  // expect: HS307
    ```

    ## What to do
    Choose smaller blocks, fewer buffers in flight, or a `vmem_limit_bytes` that the kernel really needs.

    ## Fix safety
    No automatic fix yet. Blocks change the order of sums only where a kernel accumulates over them.

    ## Options
    - `share`: part of the step's VMEM from which a reservation counts
    """  # noqa: E501 - HLO has one instruction a line
    available = analyses.memory.spaces.get("vmem", 0)
    families: dict[tuple[str, int], list[Instruction]] = {}
    for computation in analyses.module.control_computations:
        for call in computation.instructions:
            if call.opcode != "custom-call":
                continue
            reserved = _reserved(call)
            if available and reserved >= share * available:
                families.setdefault((kernel_name(call), reserved), []).append(call)
    for (name, reserved), found in families.items():
        yield fold(
            analyses,
            "HS307",
            Severity.INFO,
            f"{name} reserves nearly all of VMEM",
            [Site(instruction=i, moved=None, saved=None) for i in found],
            advice="smaller blocks, fewer buffers in flight, or a lower vmem_limit_bytes",
            details=(f"{size(reserved)} of the {size(available)} that the step uses",),
            facts={"reserved_bytes": reserved, "vmem_bytes": available},
        )


def _reserved(call: Instruction) -> int:
    """Bytes of VMEM that an instruction reserves for itself; 0 where it says nothing."""
    configs = call.backend_config.get("scoped_memory_configs")
    if not isinstance(configs, list):
        return 0
    entries = [cast("Mapping[str, Any]", c) for c in cast("list[object]", configs) if isinstance(c, dict)]
    sizes = (str(c.get("size", "")) for c in entries if str(c.get("memory_space")) == _VMEM)
    return sum(int(s) for s in sizes if s.isdecimal())
