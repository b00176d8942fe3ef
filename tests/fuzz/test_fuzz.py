"""A short run of the fuzzer, the same inputs every time; and what long runs found."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.fuzz import fuzz


def test_mutated_modules_end_in_a_report_or_a_clear_error(tmp_path: Path) -> None:
    outcomes, failures = fuzz(600, 2026, tmp_path, None)
    assert not failures
    # Both roads must be walked, or the mutations are too harsh or too mild to find anything.
    assert {what for what, number in outcomes.items() if number >= 5} >= {
        "message: report",
        "message: refused",
        "text: report",
        "text: refused",
        "bytes: refused",
        "gzip: refused",
        "text bytes: report",
    }
