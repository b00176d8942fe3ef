"""hloscope: see what the compiler does with a JAX training step, from a machine without the chip.

The public API. Names are imported when they are used: a step file that only needs `step` waits for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.capture.step import Step as Step
    from hloscope.capture.step import step as step
    from hloscope.capture.topology import Topology as Topology
    from hloscope.errors import CompileError as CompileError
    from hloscope.errors import HloscopeError as HloscopeError
    from hloscope.errors import UserError as UserError
    from hloscope.notebook.analyze import analyze as analyze
    from hloscope.notebook.compare import diff as diff
    from hloscope.plan import Plan as Plan
    from hloscope.report.build import load as load
    from hloscope.report.model import Report as Report
    from hloscope.rewrite.apply import apply as apply
    from hloscope.rewrite.marks import register_demand as register_demand
    from hloscope.rewrite.marks import valid_rows as valid_rows

__version__ = "0.1.0"

_HOMES = {
    "CompileError": "hloscope.errors",
    "HloscopeError": "hloscope.errors",
    "Plan": "hloscope.plan",
    "Report": "hloscope.report.model",
    "Step": "hloscope.capture.step",
    "Topology": "hloscope.capture.topology",
    "UserError": "hloscope.errors",
    "analyze": "hloscope.notebook.analyze",
    "apply": "hloscope.rewrite.apply",
    "diff": "hloscope.notebook.compare",
    "load": "hloscope.report.build",
    "load_ipython_extension": "hloscope.notebook.magic",
    "register_demand": "hloscope.rewrite.marks",
    "step": "hloscope.capture.step",
    "valid_rows": "hloscope.rewrite.marks",
}

__all__ = [
    "CompileError",
    "HloscopeError",
    "Plan",
    "Report",
    "Step",
    "Topology",
    "UserError",
    "__version__",
    "analyze",
    "apply",
    "diff",
    "load",
    "register_demand",
    "step",
    "valid_rows",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hloscope' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
