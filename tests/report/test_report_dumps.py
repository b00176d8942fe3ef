from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope.capture.beside import look_beside
from hloscope.errors import UserError
from hloscope.report.dumps import choose, dumped_modules
from hloscope.report.target import is_step, open_hlo

HLO = "HloModule jit_f\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"


def put(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(bytes(size)) if name.endswith(".gz") else bytes(size))
    return path


@pytest.mark.parametrize(
    ("name", "label", "module"),
    [
        ("module_0000.jit_step.cl_933746096.after_optimizations.hlo.pb", "module_0000.jit_step", "jit_step"),
        ("module_0012.jit_f.sm_9.0_gpu_after_optimizations.hlo.pb.gz", "module_0012.jit_f", "jit_f"),
        (
            "module_0001.jit_train.step.cpu_after_optimizations.hlo.pb",
            "module_0001.jit_train.step",
            "jit_train.step",
        ),
        ("after_optimizations.hlo.pb", "after_optimizations", "after_optimizations"),
    ],
)
def test_names_of_dumped_modules(tmp_path: Path, name: str, label: str, module: str) -> None:
    put(tmp_path, name, 10)
    (found,) = dumped_modules(tmp_path)
    assert (found.label, found.module, found.bytes) == (label, module, 10)


def test_only_the_optimized_module_counts(tmp_path: Path) -> None:
    put(tmp_path, "module_0000.jit_step.before_optimizations.hlo.pb", 900)
    put(tmp_path, "module_0000.jit_step.oom_intermediate_module.hlo.pb", 800)
    put(tmp_path, "module_0000.jit_step.after_optimizations-memory-usage-report.pb", 700)
    after = put(tmp_path, "module_0000.jit_step.after_optimizations.hlo.pb", 10)
    chosen, note = choose(tmp_path, None)
    assert (chosen.path, note) == (after, None)


def test_a_dominant_module_is_taken_and_said(tmp_path: Path) -> None:
    put(tmp_path, "module_0000.jit_small.after_optimizations.hlo.pb", 100)
    large = put(tmp_path, "module_0001.jit_step.after_optimizations.hlo.pb.gz", 1000)
    chosen, note = choose(tmp_path, None)
    assert chosen.path == large
    assert note == "took module_0001.jit_step, by far the largest of 2 modules; --module takes another"


def test_modules_of_like_size_have_to_be_chosen(tmp_path: Path) -> None:
    put(tmp_path, "module_0000.jit_eval.after_optimizations.hlo.pb", 100)
    train = put(tmp_path, "module_0001.jit_train.after_optimizations.hlo.pb", 120)
    with pytest.raises(
        UserError, match=r"with --module: module_0001.jit_train \(120 B\), module_0000.jit_eval \(100 B\)"
    ):
        choose(tmp_path, None)
    for name in ("jit_train", "module_0001", "module_0001.jit_train", train.name):
        assert choose(tmp_path, name)[0].path == train
    with pytest.raises(UserError, match="has no module 'nope'"):
        choose(tmp_path, "nope")
    with pytest.raises(UserError, match="fits 2 modules"):
        choose(tmp_path, "jit_")


def test_many_choices_are_not_all_listed(tmp_path: Path) -> None:
    for i in range(50):
        put(tmp_path, f"module_{i:04}.jit_f.after_optimizations.hlo.pb", 50 + i)
    with pytest.raises(UserError, match=r"and 30 more$"):
        choose(tmp_path, None)


def test_subfolders_are_looked_into(tmp_path: Path) -> None:
    put(tmp_path, "a/after_optimizations.hlo.pb", 10)
    inner = put(tmp_path, "b/after_optimizations.hlo.pb", 12)
    assert [d.label for d in dumped_modules(tmp_path)] == ["b/after_optimizations", "a/after_optimizations"]
    assert choose(tmp_path, "b/after_optimizations")[0].path == inner


def test_folders_that_hold_no_module(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no optimized module"):
        choose(tmp_path, None)
    for other in (
        "oom_intermediate_module-live-range.txt",
        "after_optimizations-live-range.txt",
        "config.pbtxt",
    ):
        put(tmp_path, f"module_0000.jit_step.{other}", 10)
    with pytest.raises(UserError, match=r"no optimized module \(\*after_optimizations\.hlo\.pb or \.txt\)"):
        choose(tmp_path, None)


def test_text_is_taken_where_there_is_no_proto(tmp_path: Path) -> None:
    below = put(tmp_path, "a/module_0000.jit_f.sm_9.0_gpu_after_optimizations.txt", 10)
    assert choose(tmp_path, "jit_f")[0].path == below
    text = put(tmp_path, "module_0001.jit_step.cl_7.after_optimizations.txt", 10)
    put(tmp_path, "module_0001.jit_step.cl_7.after_optimizations-buffer-assignment.txt", 1000)
    assert choose(tmp_path, None)[0].path == text
    assert dumped_modules(tmp_path)[0].label == "module_0001.jit_step"
    proto = put(tmp_path, "module_0001.jit_step.cl_7.after_optimizations.hlo.pb", 1)
    assert choose(tmp_path, None)[0].path == proto


def test_what_a_step_is() -> None:
    assert all(map(is_step, ["train.py", "a/b.py:step", "train.py:"]))
    assert not any(map(is_step, ["train.hlo.pb", "dump", "a.py/dump", "x.py.gz", ""]))


def test_stablehlo_is_told_from_damage(tmp_path: Path) -> None:
    text = b"\n module @jit_step {"
    for name, data in (("m.mlir", text), ("m.mlir.gz", gzip.compress(text * 9000))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=r"is StableHLO, .* give the \.hlo\.pb or the HLO text"):
            open_hlo(str(tmp_path / name))


def test_hlo_text_is_a_target(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("HloModule jit_f\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n")
    assert open_hlo(str(tmp_path / "m.txt"), module="jit_f").file.module.name == "jit_f"


@pytest.mark.parametrize("target", ["nowhere", "x" * 5000, "a\0b", ""])
def test_targets_that_are_nothing(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        open_hlo(target)


def test_a_notebook_is_no_step_yet(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    with pytest.raises(UserError, match="is a notebook"):
        open_hlo(str(tmp_path / "a.ipynb"))


def test_the_wrong_module_of_a_file(dump_file: Callable[[str], Path]) -> None:
    path = dump_file("dense")
    with pytest.raises(UserError, match="holds the module 'jit_train_step', not 'jit_eval'"):
        open_hlo(str(path), module="jit_eval")
    assert open_hlo(str(path), module="jit_train_step").file.module.name == "jit_train_step"


def test_a_module_that_did_not_get_through_the_passes_is_a_choice_too(tmp_path: Path) -> None:
    put(tmp_path, "module_0000.jit_small.cl_7.after_optimizations.hlo.pb", 100)
    put(tmp_path, "module_0000.jit_small.cl_7.before_optimizations.hlo.pb", 90)
    before = put(tmp_path, "module_0004.jit_step.cl_7.before_optimizations.hlo.pb", 350)
    with pytest.raises(UserError, match=r"module_0004.jit_step \(350 B, before optimization\)"):
        choose(tmp_path, None)
    chosen, _ = choose(tmp_path, "jit_step")
    assert (chosen.path, chosen.optimized) == (before, False)


def test_several_processes_in_one_folder(tmp_path: Path) -> None:
    first = put(tmp_path, "1795982160.module_0000.jit_step.cl_7.after_optimizations.hlo.pb", 1000)
    put(tmp_path, "1795982170.module_0000.jit_step.cl_7.after_optimizations.hlo.pb", 1000)
    put(tmp_path, "1795982150.module_0000.jit_init.cl_7.after_optimizations.hlo.pb", 10)
    chosen, note = choose(tmp_path, None)
    assert chosen.path == first
    assert note == f"took {first.name}, by far the largest of 3 modules; --module takes another"
    assert choose(tmp_path, "jit_init")[0].label == "module_0000.jit_init"


def test_a_damaged_proto_gives_way_to_its_text(tmp_path: Path) -> None:
    put(tmp_path, "module_0000.jit_f.after_optimizations.hlo.pb", 0)
    text = "HloModule jit_f\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    (tmp_path / "module_0000.jit_f.after_optimizations.txt").write_text(text)
    assert open_hlo(str(tmp_path)).notes == ()
    put(tmp_path, "module_0000.jit_f.after_optimizations.hlo.pb", 7)
    (note,) = open_hlo(str(tmp_path)).notes
    assert note.endswith("; read module_0000.jit_f.after_optimizations.txt in its place")
    (tmp_path / "module_0000.jit_f.after_optimizations.txt").write_text(text[:-9])
    with pytest.raises(UserError, match=r"hlo\.pb is no HLO module"):
        open_hlo(str(tmp_path))


@pytest.mark.parametrize("stem", ["after_optimizations", "m.after_optimizations", "my_after_optimizations"])
@pytest.mark.parametrize("ending", [".hlo.pb", ".hlo.pb.gz", ".pb"])
def test_a_damaged_proto_of_any_name_gives_way_to_its_text(tmp_path: Path, stem: str, ending: str) -> None:
    text = tmp_path / f"{stem}.txt.gz"
    text.write_bytes(gzip.compress(HLO.encode()))
    (tmp_path / f"other_{stem}.txt").write_text(HLO)
    proto = put(tmp_path, f"{stem}{ending}", 700)
    (module,) = dumped_modules(tmp_path)
    assert module.paths == (proto, text)
    proto.write_bytes(proto.read_bytes()[:-9])
    (note,) = open_hlo(str(tmp_path)).notes
    assert note.startswith(str(proto))
    assert note.endswith(f"; read {text.name} in its place")


def test_a_module_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    put(tmp_path, "module_0001.jit_a.after_optimizations.hlo.pb", 70)
    damaged = put(tmp_path, "module_0002.jit_b.after_optimizations.hlo.pb", 700)
    with pytest.raises(UserError) as caught:
        open_hlo(str(tmp_path))
    assert str(caught.value).startswith(f"{damaged} is no HLO module: ")
    assert str(caught.value).endswith("; --module takes another: module_0001.jit_a (70 B)")
    (tmp_path / "module_0001.jit_a.after_optimizations.txt").write_text(HLO)
    assert open_hlo(str(tmp_path), module="jit_a").file.module.name == "jit_f"


def test_what_was_left_when_memory_ran_out_stands_for_the_module(tmp_path: Path) -> None:
    stem = "module_0000.jit_f.cl_7."
    put(tmp_path, f"{stem}before_optimizations.hlo.pb", 900)
    text = tmp_path / f"{stem}oom_intermediate_module.txt"
    text.write_text(HLO)
    chosen, note = choose(tmp_path, None)
    assert (chosen.path, chosen.label, chosen.optimized, note) == (text, "module_0000.jit_f", True, None)
    assert open_hlo(str(tmp_path)).beside.ending == "out of memory"
    proto = put(tmp_path, f"{stem}oom_intermediate_module.hlo.pb.gz", 5)
    assert choose(tmp_path, None)[0].path == proto
    after = put(tmp_path, f"{stem}after_optimizations.hlo.pb", 3)
    assert choose(tmp_path, None)[0].path == after


def test_nothing_is_read_from_a_pipe(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for without end."""
    pipe = tmp_path / "x.hlo.pb"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        os.write(held, bytes(8192))
        with pytest.raises(UserError, match="no regular file"):
            open_hlo(str(pipe))
        assert len(os.read(held, 8192)) == 8192
    finally:
        os.close(held)


def _archive(kind: str) -> bytes:
    held = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(held, "w") as archive:
            archive.writestr("dump/module.txt", "HloModule m")
    else:
        with tarfile.open(fileobj=held, mode=kind) as archive:
            archive.addfile(tarfile.TarInfo("dump"))
    return held.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bz2.compress(b"HloModule m"), "packed with bzip2: unpack it first"),
        (lzma.compress(b"HloModule m"), "packed with xz: unpack it first"),
        (b"(\xb5/\xfd$\x0bY\x00\x00HloModule m", "packed with zstd: unpack it first"),
        (_archive("zip"), "packed with ZIP: unpack it first"),
        (_archive("w"), "is a tar archive: unpack it, and give the folder"),
        (_archive("w:gz"), "is a tar archive: unpack it, and give the folder"),
        ("HloModule m".encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
    ],
    ids=["bzip2", "xz", "zstd", "zip", "tar", "tar.gz", "utf-16"],
)
def test_what_is_packed_otherwise_is_told_so(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "module"
    path.write_bytes(data)
    with pytest.raises(UserError, match=said):
        open_hlo(str(path))


def test_a_file_that_may_not_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = put(tmp_path, "module_0000.jit_theirs.after_optimizations.hlo.pb.gz", 10)
    own = put(tmp_path, "module_0001.jit_step.after_optimizations.hlo.pb.gz", 1000)
    path_open = Path.open

    def refusing(self: Path, *args: str, **kwargs: str) -> object:
        if self == locked:
            raise PermissionError(13, "Permission denied", str(self))
        return path_open(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refusing)
    assert choose(tmp_path, None)[0].path == own


def test_of_a_record_that_is_none_only_the_beginning_is_unpacked(tmp_path: Path) -> None:
    """A few packed megabytes may unpack to all memory that there is."""
    module = put(tmp_path, "module_0000.jit_step.after_optimizations.hlo.pb", 10)
    record = b"version: TPU_VERSION_GHOSTLITE\n" + bytes(1 << 26)
    module.with_name("module_0000.jit_step.target_arguments.txt.gz").write_bytes(gzip.compress(record))
    tracemalloc.start()
    try:
        assert look_beside(module).chip == "v6e"
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
