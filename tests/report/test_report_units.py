from __future__ import annotations

import pytest

from hloscope.devices import chips
from hloscope.errors import UserError
from hloscope.hlo import SourceFrame
from hloscope.units import count, parse_size, percent, plural, share, size, some, where


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (61579672640, "57.4 GiB"),
        (1024**3, "1.0 GiB"),
        (1023 * 1024, "1023.0 KiB"),
        (2**70, "1024.0 EiB"),
    ],
)
def test_size_in_words(value: int | None, text: str) -> None:
    assert size(value) == text


def test_unknown_is_never_zero() -> None:
    assert (size(None), count(None), percent(3, 0)) == ("unknown",) * 3


def test_the_first_of_many_names() -> None:
    assert some(["a", "b", "c"], 3) == "a, b, c"
    assert some(["a", "b", "c", "d"], 2) == "a, b and 2 more"


def test_a_share_below_all_never_reads_as_all() -> None:
    assert [share(s) for s in (1.0, 0.99999, 0.56, 0.125, 0.0001)] == [
        "100 %",
        "99.9 %",
        "56 %",
        "12.5 %",
        "0.01 %",
    ]


def test_counts_and_plurals() -> None:
    assert count(53434) == "53,434"
    assert [plural(1, "place"), plural(2, "place"), plural(2, "family")] == [
        "1 place",
        "2 places",
        "2 families",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("92GiB", 92 * 2**30),
        (" 1.5 tb ", 1_500_000_000_000),
        ("10_000b", 10_000),
        ("3kib", 3072),
        ("2MB", 2_000_000),
        ("1TiB", 2**40),
    ],
)
def test_sizes_that_are_understood(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "92",
        "GiB",
        "-1GiB",
        "1e3GiB",
        "nan GiB",
        "1 GiBs",
        "1_GiB",
        "1__0GiB",
        "9" * 400 + "GiB",
        "1PB",
        "٣GiB",
    ],
)
def test_sizes_that_are_not(text: str) -> None:
    with pytest.raises(UserError, match="is no size"):
        parse_size(text)


def test_a_source_keeps_its_folder() -> None:
    assert where(SourceFrame("/home/me/project/layers/moe.py", 12, "f")) == "layers/moe.py:12"
    assert where(SourceFrame("moe.py", 0, "")) == "moe.py"
    assert where(None) == ""


def test_hbm_of_a_device() -> None:
    usable = {name: round(chip.usable_bytes / 2**30, 2) for name, chip in chips().items()}
    assert usable == {"v4": 30.75, "v5e": 15.75, "v5p": 95.73, "v6e": 31.24, "tpu7x": 94.74}
