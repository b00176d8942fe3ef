"""Files of several parts: gzip members are one file, modules one after the other are none."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.errors import UserError
from hloscope.hlo import read_hlo

TEXT = b"HloModule m\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"


def write(folder: Path, data: bytes) -> Path:
    path = folder / "module.hlo.pb"
    path.write_bytes(data)
    return path


@pytest.fixture
def whole(dump_file: Callable[[str], Path]) -> bytes:
    return gzip.decompress(dump_file("oom").read_bytes())


@pytest.mark.parametrize("parts", [2, 3000])
def test_gzip_members_are_one_file(parts: int, whole: bytes, tmp_path: Path) -> None:
    """What is packed block by block has thousands of them."""
    step = -(-len(whole) // parts)
    packed = b"".join(gzip.compress(whole[at : at + step], 1) for at in range(0, len(whole), step))
    assert read_hlo(write(tmp_path, packed)).module.instruction_count == 1036


def test_a_later_member_is_held_to_what_the_first_is(whole: bytes, tmp_path: Path) -> None:
    first, second = gzip.compress(whole[:5000]), gzip.compress(whole[5000:])
    with pytest.raises(UserError, match="ends too early: the gzip file is truncated"):
        read_hlo(write(tmp_path, first + second[:-200]))
    with pytest.raises(UserError, match="is a damaged gzip file"):
        read_hlo(write(tmp_path, first + second[:50] + b"damage" + second[56:]))


def test_modules_one_after_the_other_are_refused(whole: bytes, tmp_path: Path) -> None:
    module = read_hlo(write(tmp_path, whole)).module.proto.SerializeToString()
    for data in (whole * 2, module * 2, gzip.compress(whole) * 2):
        with pytest.raises(
            UserError, match="has several modules, one after the other: give every module a file"
        ):
            read_hlo(write(tmp_path, data))
    with pytest.raises(UserError, match="a second module begins here"):
        read_hlo(write(tmp_path, gzip.compress(TEXT) * 2))
