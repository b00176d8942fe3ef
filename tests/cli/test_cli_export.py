"""`hloscope export`: what is written reads back as what was given."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hloscope.hlo import HloFile, read_hlo
from tests.cli.conftest import Run


def names(file: HloFile) -> list[str]:
    return [i.name for i in file.module.instructions]


def test_the_proto_is_the_same_with_all_that_nobody_here_knows(run: Run, oom: Path, tmp_path: Path) -> None:
    place = tmp_path / "out.pb.gz"
    code, out, err = run("export", oom, "--proto", place)
    assert (code, err) == (0, "")
    assert out == f"{place}: the module and its buffer assignment as an HloProto\n"
    given = gzip.decompress(oom.read_bytes())
    assert len(gzip.decompress(place.read_bytes())) == len(given)
    one, other = read_hlo(oom), read_hlo(place)
    assert one.module.proto == other.module.proto
    assert one.buffer_assignment == other.buffer_assignment


def test_text_is_the_compilers_own_where_it_lies_beside(run: Run, oom: Path, tmp_path: Path) -> None:
    place = tmp_path / "out.txt"
    code, out, _ = run("export", oom, "--hlo", place)
    assert (code, out) == (0, f"{place}: the module as text, as the compiler dumped it\n")
    beside = oom.with_name(oom.name.replace(".hlo.pb", ".txt"))
    assert place.read_bytes() == gzip.decompress(beside.read_bytes())
    again = tmp_path / "again.txt"
    assert run("export", place, "--hlo", again)[0] == 0
    assert again.read_bytes() == place.read_bytes()


def test_text_is_written_where_there_is_none(run: Run, oom: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pb"
    alone.write_bytes(gzip.decompress(oom.read_bytes()))
    place = tmp_path / "out.txt"
    code, out, _ = run("export", alone, "--hlo", place)
    assert (code, out) == (0, f"{place}: the module as text, written by hloscope\n")
    assert sorted(names(read_hlo(place))) == sorted(names(read_hlo(oom)))


def test_a_folder_for_xprof(run: Run, oom: Path, tmp_path: Path) -> None:
    """A profile's layout; two modules never share a folder, as XProf caches by its name."""
    folder = tmp_path / "a folder"
    code, out, _ = run("export", oom, "--xprof", folder)
    assert code == 0
    assert f"xprof --logdir '{folder}'" in out
    (profile,) = (folder / "plugins" / "profile").iterdir()
    assert sorted(p.name for p in profile.iterdir()) == ["h.xplane.pb", "jit_step(1).hlo_proto.pb"]
    assert (profile / "h.xplane.pb").read_bytes() == b""
    assert read_hlo(profile / "jit_step(1).hlo_proto.pb").module.proto == read_hlo(oom).module.proto
    assert run("export", oom, "--xprof", folder)[0] == 0
    assert len(list((folder / "plugins" / "profile").iterdir())) == 1


def test_a_target_without_a_buffer_assignment_says_so(run: Run, oom: Path, tmp_path: Path) -> None:
    text = oom.with_name(oom.name.replace(".hlo.pb", ".txt"))
    _, out, _ = run("export", text, "--proto", tmp_path / "out.pb")
    assert "without a buffer assignment, as the target has none" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say what to write: --xprof DIR, --hlo FILE or --proto FILE"),
        (["--hlo", "nowhere/out.txt"], "cannot write nowhere/out.txt: No such file or directory"),
        (["--proto", "."], "cannot write .: it is a folder, not a file"),
        (["--proto", ""], "cannot write : the name is empty"),
        (["--hlo", "-"], "--hlo writes a file: give it a name, not -"),
        (["--xprof", "file"], "cannot make the folder file/plugins/profile"),
    ],
)
def test_what_cannot_be_written(
    options: list[str], message: str, run: Run, oom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    code, _, err = run("export", oom, *options)
    assert code == 2
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
