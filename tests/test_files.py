"""Files are there whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hloscope.errors import UserError
from hloscope.files import WholeFile, write_whole


def test_a_run_that_fails_leaves_the_older_file_and_nothing_beside(tmp_path: Path) -> None:
    place = tmp_path / "report"
    place.write_text("older")
    with pytest.raises(RuntimeError), WholeFile(place):
        raise RuntimeError
    assert place.read_text() == "older"
    assert list(tmp_path.iterdir()) == [place]


def test_a_link_stays_a_link_and_the_mode_stays(tmp_path: Path) -> None:
    place, link = tmp_path / "report", tmp_path / "link"
    place.write_text("older")
    place.chmod(0o640)
    link.symlink_to(place)
    write_whole(link, [b"new", b"er"])
    assert link.is_symlink()
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("newer", 0o640)


def test_a_place_that_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, [b"read me"])
        assert os.read(reader, 100) == b"read me"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_what_could_not_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write the plan to .*: No such file or directory"):
        write_whole(tmp_path / "nowhere" / "plan.toml", [b""], "the plan")
