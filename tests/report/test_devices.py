"""The chips' figures, and what a user may set of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.devices import chips, read_figures, with_figures
from hloscope.errors import UserError


def test_figures_agree_with_the_published_table_of_jax():
    """jax's own table, per TensorCore, was read from jax 0.12.0.1; v5p's bandwidth differs (2460 GB/s)."""
    per_core = {
        "v4": (1.23e12, 2.75e14),
        "v5e": (8.2e11, 1.97e14),
        "v6e": (1.64e12, 9.2e14),
        "tpu7x": (7.4e12, 2.31e15),
    }
    for name, (bandwidth, peak) in per_core.items():
        chip = chips()[name]
        assert chip.hbm_bytes_per_second * chip.devices_per_chip == pytest.approx(bandwidth, rel=0.025)
        assert chip.bf16_per_second * chip.devices_per_chip == pytest.approx(peak, rel=0.025)


def test_matrix_rate_is_the_width_of_the_units_at_the_clock():
    macs = {"v4": 8 * 128**2, "v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}
    for name, count in macs.items():
        chip = chips()[name]
        assert 2 * count * chip.clock_hz == pytest.approx(chip.bf16_per_second, rel=0.005)


def test_a_user_sets_figures_of_one_chip(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text("[v6e]\nhbm_efficiency = 0.8\nbf16_per_second = 9e14\n")
    chip = with_figures(chips()["v6e"], str(file))
    assert (chip.hbm_efficiency, chip.bf16_per_second, chip.figures_from) == (0.8, 9e14, "mine.toml")
    assert with_figures(chips()["v5p"], str(file)) == chips()["v5p"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[v6e", "is no TOML"),
        ("[v9]\nclock_hz = 1.0", "there is no chip 'v9'; there are v4, v5e, v5p, v6e, tpu7x"),
        ("v6e = 1", "is to be a table"),
        ("[v6e]\nusable_bytes = 1", "cannot set 'usable_bytes'; it can set clock_hz"),
        ("[v6e]\nhbm_efficiency = 75", "a share, above 0 and at most 1, not 75"),
        ("[v6e]\nhbm_efficiency = nan", "a share, above 0"),
        ("[v6e]\nclock_hz = 0", "a rate, above 0, not 0"),
        ("[v6e]\nclock_hz = inf", "a rate, above 0, not inf"),
        ("[v6e]\nclock_hz = true", "a rate, above 0, not True"),
    ],
)
def test_figures_that_cannot_be(text: str, said: str, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        read_figures(str(file))


def test_figures_that_are_not_there(tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot read the file of chip figures .*: No such file"):
        read_figures(str(tmp_path / "none.toml"))
    with pytest.raises(UserError, match="cannot read the file of chip figures"):
        read_figures(str(tmp_path))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is no TOML"):
        read_figures(str(tmp_path / "bytes"))
