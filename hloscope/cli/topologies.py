"""`hloscope topologies`: what `--topology` takes."""

from __future__ import annotations

import sys

from rich.console import Group

from hloscope.capture import topology_names
from hloscope.cli.output import write_text
from hloscope.devices import Chip, chips
from hloscope.report.tables import Column, table
from hloscope.report.terminal import words
from hloscope.units import size


def topologies() -> None:
    """Print the chips, a shape of each, and how a name is made."""
    write_text(lambda width: _page(width), sys.stdout)


def _page(width: int) -> Group:
    columns = (
        Column(title="chip"),
        Column(title="e.g."),
        Column(title="devices per chip", right=True),
        Column(title="usable HBM per device", right=True),
    )
    return Group(
        words("A topology is chip:shape, the shape counting chips: tpu7x:4x4x4 is 64 chips, 128 devices."),
        words(),
        table(columns, [_row(chip) for chip in chips().values()], width),
        words(),
        words(
            "v2 and v3 compile too, e.g. for v2:2x2, but have no times: their figures are not kept here. "
            "libtpu decides which shapes there are. cpu:8 stands for eight devices of this machine, to run on."
        ),
    )


def _row(chip: Chip) -> list[str]:
    example = topology_names.suggest(chip.name) or ""
    return [chip.name, example, str(chip.devices_per_chip), size(chip.usable_bytes)]
