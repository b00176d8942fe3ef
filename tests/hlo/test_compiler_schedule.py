"""Reading the record of the compiler's scheduler; what is in another form is unknown, never wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hloscope.errors import UserError
from hloscope.hlo.compiler_schedule import CompilerSchedule, read_schedule

RECORD = """\
hlo_module {
  name: "jit_step"
  scheduler_statistics: "a name that says total_cycles: 3"
}
computation_schedules {
  computation_id: 15
  instructions {
    id: 64424509463
    end_timestamp_cycles: 51160.5
  }
  scheduler_statistics {
    all_gather_wasted_cycles: 1500
    copy_wasted_cycles: 1.5e-05
    call_wasted_cycles: 3e3
    total_wasted_cycles: 4500
    total_cycles: 45000.5
    memory_pressure_peak: 2360320
  }
  cycles_per_microsecond: 1500
}
"""


def read(folder: Path, text: str) -> CompilerSchedule | None:
    path = folder / "schedule.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return read_schedule(path)


def test_the_clock_and_the_waits(tmp_path: Path) -> None:
    found = read(tmp_path, RECORD)
    assert found is not None
    assert found.clock_hz == 1.5e9
    assert found.seconds == pytest.approx(30.000333e-6)
    assert list(found.waits.items()) == [
        ("call", pytest.approx(2e-6)),
        ("all_gather", pytest.approx(1e-6)),
        ("copy", pytest.approx(1e-14)),
    ]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("computation_schedules {", "schedules {"),
        ("scheduler_statistics {", "statistics {"),
        ("cycles_per_microsecond: 1500", "cycles_per_microsecond: 0"),
        ("cycles_per_microsecond", "ticks_per_microsecond"),
        ("total_cycles: 45000.5", "length_cycles: 45000.5"),
    ],
)
def test_another_form_is_unknown(was: str, now: str, tmp_path: Path) -> None:
    assert read(tmp_path, RECORD.replace(was, now)) is None


def test_damage_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is damaged"):
        read(tmp_path, RECORD.replace("45000.5", "4.5.0"))
