"""`hloscope kernel`: what bounds a Pallas kernel, or what XLA makes of the work, from its machine code."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hloscope.cli.output import JsonOutput, check_timeout, refuse_one_place, write_text
from hloscope.cli.progress import progress
from hloscope.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line of `hloscope kernel`, as it was typed."""

    target: str
    topology: str | None = None
    json: str | None = None
    valid_fraction: float | None = None
    figures: str | None = None
    fresh: bool = False
    timeout: float | None = None
    quiet: bool = False


def run(request: Request) -> int:
    """Compile the kernel, read its machine code, and write what it tells."""
    from hloscope.report.build import check_valid_fraction
    from hloscope.report.kernel import load_kernel
    from hloscope.report.target import is_step
    from hloscope.report.text_kernel import render_kernels

    check_valid_fraction(request.valid_fraction)
    if not is_step(request.target):
        raise UserError(
            f"{request.target} is no step file: give file.py or file.py:name, with @hs.step in it"
        )
    check_timeout(request.timeout)
    refuse_one_place(request.target, json=request.json)
    with JsonOutput(request.json) as output:
        with progress(quiet=request.quiet) as on_event:
            report = load_kernel(
                request.target,
                topology=request.topology,
                valid_fraction=request.valid_fraction,
                figures=request.figures,
                timeout=request.timeout,
                fresh=request.fresh,
                on_event=on_event,
            )
        if output.wanted:
            output.write_json(report.to_dict())
        if not output.is_standard:
            write_text(lambda width: render_kernels(report), sys.stdout)
    return 0
