"""Artifacts on disk and the store that keeps them, without jax."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hloscope.capture import Artifact, MemoryStats
from hloscope.capture.artifact import MANIFEST, from_fields, to_fields, write_artifact
from hloscope.capture.store import Store, default_folder, default_limit, key_of
from hloscope.errors import UserError


def an_artifact(path: Path, key: str = "k", content: bytes = b"hlo") -> Artifact:
    path.mkdir(parents=True)
    hlo = path / "after_optimizations.hlo.pb"
    hlo.write_bytes(content)
    return Artifact(
        path=path,
        hlo_path=hlo,
        module_name="jit_step",
        step_name="step",
        source_file="step.py",
        topology="v5e:2x4",
        platform="tpu",
        chip="v5e",
        num_devices=8,
        mesh_axes={"data": 8},
        memory_stats=MemoryStats(temp_bytes=5),
        versions={"jax": "1", "libtpu": None},
        flags={},
        compiler_options={"xla_x": True},
        parameter_names=["x"],
        warnings=["w"],
        created="2026-01-01T00:00:00+00:00",
        key=key,
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def a_store(tmp_path: Path, limit: int = 1 << 20) -> Store:
    return Store(folder=tmp_path / "store", limit_bytes=limit)


def test_artifact_survives_json(tmp_path: Path) -> None:
    artifact = an_artifact(tmp_path / "a")
    assert from_fields(tmp_path / "a", to_fields(artifact)) == artifact


@pytest.mark.parametrize("fields", [None, [], {}, {"path": "x"}])
def test_fields_that_are_no_artifact(fields: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its manifest"):
        from_fields(tmp_path, fields)


def test_loading_a_folder_that_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no artifact of hloscope"):
        Artifact.load(tmp_path)


def test_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    assert store.lookup("k") is None
    published = store.publish(an_artifact(store.staging() / "artifact"))
    assert published.path == store.place("k")
    assert store.lookup("k") == published


def test_store_keeps_what_another_process_put_there(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    first = store.publish(an_artifact(store.staging() / "artifact"))
    second = store.publish(an_artifact(store.staging() / "artifact", content=b"newer"))
    assert (second, second.hlo_path.read_bytes()) == (first, b"hlo")
    third = store.publish(an_artifact(store.staging() / "artifact", content=b"newest"), replace=True)
    assert third.hlo_path.read_bytes() == b"newest"
    assert store.lookup("k") == third


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.hlo_path.unlink(),
        lambda a: a.hlo_path.write_bytes(b"HLO"),
        lambda a: (a.path / MANIFEST).unlink(),
        lambda a: (a.path / MANIFEST).write_text("{"),
        lambda a: (a.path / MANIFEST).write_text("[]"),
        lambda a: (a.path / MANIFEST).write_text('{"format": 1, "files": [], "artifact": {}}'),
        lambda a: (a.path / MANIFEST).write_text(
            (a.path / MANIFEST).read_text().replace('"format": 1', '"format": 0')
        ),
        lambda a: (a.path / MANIFEST).write_text(
            (a.path / MANIFEST).read_text().replace('"key": "k"', '"key": "j"')
        ),
    ],
)
def test_store_never_gives_out_what_is_damaged(damage, tmp_path: Path) -> None:
    store = a_store(tmp_path)
    damage(store.publish(an_artifact(store.staging() / "artifact")))
    assert store.lookup("k") is None
    store.publish(an_artifact(store.staging() / "artifact"))
    assert store.lookup("k") is not None


def test_store_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = a_store(tmp_path, limit=250_000)
    for number, key in enumerate("abc"):
        stored = store.publish(an_artifact(store.staging() / "artifact", key=key, content=bytes(70_000)))
        os.utime(stored.path / MANIFEST, (1_000_000 + number,) * 2)
    assert store.lookup("a") is not None
    store.publish(an_artifact(store.staging() / "artifact", key="d", content=bytes(70_000)))
    assert {key for key in "abcd" if store.lookup(key)} == {"a", "c", "d"}


def test_store_keeps_what_it_just_got_however_large(tmp_path: Path) -> None:
    store = a_store(tmp_path, limit=0)
    store.publish(an_artifact(store.staging() / "artifact"))
    assert store.lookup("k") is not None


def test_store_sweeps_stale_staging_folders(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    stale, fresh = store.staging(), store.staging()
    os.utime(stale, (1_000_000,) * 2)
    store.evict()
    assert (stale.exists(), fresh.exists()) == (False, True)


def test_store_in_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set HLOSCOPE_CACHE to a folder"):
        Store(folder=tmp_path / "file", limit_bytes=0).staging()


def test_keys_depend_on_every_part() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": "1"}), key_of({"b": 1}), key_of({"a": True})}) == 4


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder({"HLOSCOPE_CACHE": "/x", "XDG_CACHE_HOME": "/y"}) == Path("/x")
    assert default_folder({"XDG_CACHE_HOME": "/y"}) == Path("/y/hloscope")
    assert default_folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/hloscope")


def test_how_large_the_store_may_be() -> None:
    assert default_limit({}) == 10 * 2**30
    assert default_limit({"HLOSCOPE_CACHE_GIB": "0.5"}) == 2**29
    for wrong in ("many", "-1", "nan"):
        with pytest.raises(UserError, match="HLOSCOPE_CACHE_GIB must be a number of GiB"):
            default_limit({"HLOSCOPE_CACHE_GIB": wrong})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hlo_path", "../elsewhere.pb", "its files must lie in its folder"),
        ("num_devices", "8", "its num_devices cannot be '8'"),
        ("num_devices", 0, "below zero"),
        ("mesh_axes", ["data"], "its mesh_axes cannot be"),
        ("mesh_axes", {"data": 0}, "its mesh and its device ids do not fit"),
        ("mesh_device_ids", [0, 1], "its mesh and its device ids do not fit"),
        ("memory_stats", {"temp_bytes": "many"}, "its temp_bytes cannot be 'many'"),
        ("memory_stats", [1], "does not fit"),
        ("valid_fraction", 7.0, "its valid_fraction cannot be 7.0"),
        ("parameter_names", [1], "its parameter_names cannot be"),
        ("status", "fine", "its status cannot be 'fine'"),
        ("flags", None, "its flags cannot be 'None'"),
    ],
)
def test_a_manifest_edited_by_hand(field: str, value: object, said: str, tmp_path: Path) -> None:
    made = an_artifact(tmp_path / "a")
    write_artifact(made, {})
    manifest = json.loads((made.path / MANIFEST).read_text())
    manifest["artifact"][field] = value
    (made.path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=re.escape(said)):
        Artifact.load(made.path)
