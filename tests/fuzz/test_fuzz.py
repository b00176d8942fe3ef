"""A short run of the fuzzer, the same inputs every time, and files that are not what they seem."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.errors import UserError
from hloscope.hlo import protos
from hloscope.report.build import load
from tests.fuzz.fuzz import consume, fuzz
from tests.fuzz.seeds import seeds


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
        "schedule: report",
        "buffers: report",
        "buffers: refused",
        "dump: report",
    }


HEAD = "HloModule m, is_scheduled=true\n\nENTRY e {\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "  ROOT p = f32[1000000000000000000]{0:T(1024)} parameter(0)\n}\n",
        HEAD + "  p = s8[1000000000,1000000000]{1,0} parameter(0)\n  ROOT c = s8[] constant(1)\n}\n",
        HEAD + "  ROOT p = " + "(" * 20 + "f32[0]{0}" + ")" * 20 + " parameter(0)\n}\n",
    ],
)
def test_sizes_that_no_machine_has_are_only_numbers(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(text)
    assert consume(path, drawn=True) == "report"


@pytest.mark.parametrize("size", ["0", "8,0", "0,128"])
def test_a_tile_of_no_size(size: str, tmp_path: Path) -> None:
    seed = protos.HloProto()
    seed.CopyFrom(seeds()[0])
    for computation in seed.hlo_module.computations:
        for instruction in computation.instructions:
            shape = protos.Shape.FromString(instruction.shape)
            del shape.layout.tiles[:]
            shape.layout.tiles.add(dimensions=map(int, size.split(",")))
            instruction.shape = shape.SerializeToString()
    path = tmp_path / "m.hlo.pb"
    path.write_bytes(seed.SerializeToString())
    assert "a tile without a size: the file is damaged" in refusal(path)


@pytest.mark.parametrize("part", ["dimensions", "tiles"])
def test_more_elements_than_a_float_can_count(part: str, tmp_path: Path) -> None:
    path = tmp_path / "m.hlo.pb"
    grown = protos.HloProto()
    grown.CopyFrom(seeds()[0])
    for computation in grown.hlo_module.computations:
        for instruction in computation.instructions:
            shape = protos.Shape.FromString(instruction.shape)
            if shape.dimensions:
                shape.dimensions.extend([2**60 if part == "dimensions" else 1] * 20)
                shape.layout.minor_to_major[:] = range(len(shape.dimensions))
            if part == "tiles":
                shape.layout.tiles.add(dimensions=[2**60] * len(shape.dimensions))
            instruction.shape = shape.SerializeToString()
    path.write_bytes(grown.SerializeToString())
    assert "beyond all measure: the file is damaged" in refusal(path)


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_encoding_is_no_module(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(HEAD + "  ROOT p = f32[] parameter(0)\n}\n", encoding="utf-16")
    assert "is text in UTF-16: save it as UTF-8" in refusal(path)


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "around").symlink_to(tmp_path / "around")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert "around" in refusal(tmp_path / "around")
    assert "there is no file or folder" in refusal(tmp_path / "gone")
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "module_0001.jit_f.after_optimizations.hlo.pb").symlink_to(tmp_path / "nothing")
    assert "has no optimized module" in refusal(folder)


def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.hlo.pb"
    path.write_bytes(seeds()[0].SerializeToString())

    def vanished(self: Path) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "read_bytes", vanished)
    assert f"cannot read {path}: No such file or directory" in refusal(path)
