"""HS505: the step waits for the host: callbacks, infeeds, outfeeds, transfers."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.place import phase_of
from hloscope.hlo import Instruction, async_operation, is_async_start
from hloscope.rule import Finding, Severity, rule
from hloscope_rules._family import Site, fold, in_phase

_HOST = 5  # the host's memory space
_FEEDS = {"infeed": "an infeed", "outfeed": "an outfeed"}
_MESSAGES = {"send": "a message to the host", "recv": "a message from the host"}
_CALLBACK = "callback"


@rule(code="HS505", name="host-in-step", severity=Severity.WARNING)
def host_in_step(analyses: Analyses) -> Iterable[Finding]:
    """The step talks to the host while it runs: a callback, an infeed or outfeed, a message, or a copy across.

    ## What it does
    Finds infeeds and outfeeds, sends and receives that are marked as host transfers, custom calls that run Python on
    the host, and copies between HBM and the host's memory. Copies are a remark: offloading is done on purpose.

    ## Why is this bad
    The device waits for a machine that is busy with something else, in each layer if it stands in a scan, and work
    cannot be moved across. `jax.debug.print` and checks of NaN are the usual ones that were forgotten.

    ## Example
    ```hlo
    x = f32[1024,1024] parameter(0)
    token = token[] after-all()
    ROOT out = token[] outfeed(x, token)  // expect: HS505
    ```

    ## What to do
    Return what is to be logged from the step and print it outside; guard debug output by a flag that is off when the
    step is compiled for a run; for offloads see that their copies overlap with compute.

    ## Fix safety
    No automatic fix yet.
    """
    families: dict[tuple[str, str, str], list[Instruction]] = {}
    for computation in analyses.module.control_computations:
        for instruction in computation.instructions:
            what = _host_work(instruction)
            if what is not None:
                shape = "" if what in _FEEDS.values() else f" of {_moved(instruction)}"
                families.setdefault((what, shape, phase_of(instruction).value), []).append(instruction)
    for (what, shape, phase), found in families.items():
        severity = Severity.INFO if what.startswith("a copy") else Severity.WARNING
        yield fold(
            analyses,
            "HS505",
            severity,
            f"{what}{shape} in the step{in_phase(phase)}",
            [Site(instruction=i, moved=None, saved=None) for i in found],
            advice="return it from the step and use it outside, or compile without it",
            details=(f"%{found[0].name}",),
        )


def _host_work(instruction: Instruction) -> str | None:
    opcode = instruction.opcode
    if opcode in _FEEDS:
        return _FEEDS[opcode]
    if opcode in _MESSAGES and instruction.proto.is_host_transfer:
        return _MESSAGES[opcode]
    if opcode == "custom-call" and _CALLBACK in (instruction.custom_call_target or ""):
        return "a callback to Python"
    if opcode == "copy" or opcode == "copy-start":
        return _copy_across(instruction)
    return None


def _copy_across(copy: Instruction) -> str | None:
    operation = async_operation(copy) if is_async_start(copy.opcode) else None
    after = operation.done.shape if operation and operation.done else copy.shape
    before = copy.operands[0].shape
    if before.is_tuple or after.is_tuple or (before.memory_space == _HOST) == (after.memory_space == _HOST):
        return None
    return "a copy to the host" if after.memory_space == _HOST else "a copy from the host"


def _moved(instruction: Instruction) -> str:
    source = instruction.operands[0].shape if instruction.operands else instruction.shape
    return source.short
