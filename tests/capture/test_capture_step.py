"""A step compiled for v5e:2x4: what comes back, and that it is not compiled twice."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hloscope.capture import Artifact, Event, capture_step
from hloscope.devices import chips
from hloscope.hlo import read_hlo
from hloscope.hlo.compiler_schedule import read_schedule
from hloscope.report.build import build_report
from hloscope.report.target import open_artifact

pytestmark = pytest.mark.tpu_compile

Trained = tuple[Artifact, list[Event]]


def test_artifact_holds_the_compilers_files(trained: Trained) -> None:
    artifact, _ = trained
    assert b"jit_update" in artifact.hlo_path.read_bytes()[:200]
    assert artifact.before_hlo_path is not None
    assert b"jit_update" in gzip.decompress(artifact.before_hlo_path.read_bytes())
    # Gathering the weights is asynchronous, so there is a schedule.
    assert artifact.schedule_path is not None
    schedule = read_schedule(artifact.schedule_path)
    assert schedule is not None
    # The clock of a v5e's core; gathering the weights is what there is to wait for.
    assert schedule.clock_hz == chips()["v5e"].clock_hz
    assert 0 < schedule.waits["all_gather"] < schedule.seconds


def test_the_time_of_the_step_by_layer(trained: Trained) -> None:
    artifact, _ = trained
    time = build_report(open_artifact(artifact, "steps.py")).time
    assert list(time.by_layer) == ["layer_0", "layer_1", None]
    # The update of the weights is no layer's; forward and backward are.
    assert min(time.by_layer.values()) > 0
    assert sum(time.by_layer.values()) == pytest.approx(time.seconds)
    assert time.scheduler is not None


def test_the_module_runs_in_the_order_of_the_scheduler(trained: Trained) -> None:
    """Later passes add and rename work, and move what costs nothing; the work that the scheduler ordered stays so."""
    artifact, _ = trained
    assert artifact.schedule_path is not None
    module = read_hlo(artifact.hlo_path).module
    before, _, after = gzip.decompress(artifact.schedule_path.read_bytes()).decode().partition("\ncomp")
    names = dict(
        reversed(named)
        for named in re.findall(
            r'^      name: "([^"]*)"\n(?:(?!^    \}).*\n)*?^      id: (\d+)$', before, re.M
        )
    )
    scheduled = [names[number] for number in re.findall(r"^    id: (\d+)$", after, re.M)]
    free = ("constant", "parameter", "get-tuple-element", "tuple")
    places = {i.name: at for at, i in enumerate(module.entry.schedule) if i.opcode not in free}
    kept = [places[name] for name in scheduled if name in places]
    assert len(kept) > 5
    assert kept == sorted(kept)


def test_artifact_says_what_was_compiled(trained: Trained, train_file: str) -> None:
    artifact, _ = trained
    assert (artifact.step_name, artifact.source_file) == ("train_step", train_file)
    assert (artifact.topology, artifact.platform, artifact.chip) == ("v5e:2x4", "tpu", "v5e")
    assert (artifact.module_name, artifact.num_devices) == ("jit_update", 8)
    assert artifact.mesh_axes == {"data": 8}
    assert sorted(artifact.mesh_device_ids or ()) == list(range(8))
    # The third argument is not used, so jax passes it to no parameter.
    assert artifact.parameter_names == ["params['wi']", "params['wo']", "batch"]
    assert (artifact.status, artifact.error, artifact.valid_fraction) == ("ok", None, 0.5)
    assert None not in [artifact.versions[name] for name in ("python", "jax", "jaxlib", "libtpu")]


def test_memory_stats_and_limit(trained: Trained) -> None:
    stats = trained[0].memory_stats
    assert stats is not None
    # A device holds an eighth of two weights and of the batch, two bytes each.
    assert stats.argument_bytes == 2 * (2 * 512 * 512 + 64 * 512) // 8
    # The donated weights come back in place.
    assert stats.alias_bytes == 2 * (2 * 512 * 512) // 8
    assert stats.temp_bytes is not None
    assert stats.peak_bytes is not None
    # v5e has 16 GiB, of which the compiler keeps a quarter for itself.
    assert trained[0].hbm_limit_bytes == round(15.75 * 2**30)


def test_flags_are_those_not_at_their_defaults(trained: Trained) -> None:
    assert trained[0].flags == {"xla_tpu_scoped_vmem_limit_kib": "32768"}
    assert trained[0].compiler_options == {"xla_tpu_scoped_vmem_limit_kib": 32768}


def test_an_ordinary_compile_warns_of_nothing(trained: Trained) -> None:
    assert trained[0].warnings == []


def test_events_come_in_order(trained: Trained) -> None:
    _, events = trained
    stages = ["start", "import", "build", "trace", "lower", "compile", "store", "done"]
    assert [event.stage for event in events] == stages
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    assert events[-1].detail == "compiled"


def test_unchanged_step_is_not_compiled_again(trained: Trained, train_file: str) -> None:
    events: list[Event] = []
    again = capture_step(f"{train_file}:train_step", on_event=events.append)
    assert again == trained[0]
    assert "compile" not in [event.stage for event in events]
    assert events[-1].detail == "cached"


def test_damaged_artifact_is_compiled_again(write_step) -> None:
    path = write_step("""
        @hs.step(topology="v5e:2x4")
        def double(topology):
            return hs.Step(lambda x: x * 2, args=(shaped(topology, (64, 128), "data"),))
    """)
    first = capture_step(path)
    whole = first.hlo_path.read_bytes()
    first.hlo_path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    events: list[Event] = []
    assert capture_step(path, on_event=events.append).hlo_path.stat().st_size == len(whole)
    assert events[-1].detail == "compiled"
    events.clear()
    capture_step(path, fresh=True, on_event=events.append)
    assert events[-1].detail == "compiled"


def test_changes_that_change_the_outcome_are_noticed(write_step) -> None:
    body = """
        @hs.step(topology="v5e:2x4")
        def step(topology):
            return hs.Step(lambda x: x * {factor}, args=(shaped(topology, (64, 128), "data"),){options})
    """
    keys = [
        capture_step(write_step(body.format(factor=factor, options=options)), topology=topology).key
        for factor, options, topology in (
            (2, "", None),
            (3, "", None),
            (2, ", compiler_options={'xla_tpu_rwb_fusion': False}", None),
            (2, "", "v5e:4x2"),
        )
    ]
    assert len(set(keys)) == 4


def test_an_edit_within_a_second_is_noticed(write_step, tmp_path: Path) -> None:
    body = """
        @hs.step(topology="v5e:2x4")
        def step(topology):
            return hs.Step(lambda x: x * {factor}, args=(shaped(topology, (64, 128), "data"),))
    """
    keys = []
    for factor in (2, 3):
        path = write_step(body.format(factor=factor))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        keys.append(capture_step(path).key)
    assert keys[0] != keys[1]
    # Nothing is left beside the user's file.
    assert [found.name for found in tmp_path.iterdir()] == ["steps.py"]


def test_a_jitted_step_keeps_its_own_shardings(write_step) -> None:
    path = write_step("""
        @hs.step(topology="v5e:2x4", name="jitted")
        def builder(topology):
            sharding = NamedSharding(topology.mesh(a=4, b=2), P("a"))
            step = jax.jit(lambda x, n: x * n, in_shardings=sharding, static_argnums=1, donate_argnums=0)
            return hs.Step(step, args=(jax.ShapeDtypeStruct((64, 64), jnp.float32), 3))
    """)
    artifact = capture_step(f"{path}:jitted")
    assert artifact.mesh_axes == {"a": 4, "b": 2}
    assert artifact.parameter_names == ["x"]
    assert artifact.memory_stats is not None
    assert artifact.memory_stats.alias_bytes == artifact.memory_stats.argument_bytes


def test_a_single_device_needs_no_mesh(write_step) -> None:
    path = write_step("""
        @hs.step(topology="v6e:1x1")
        def alone(topology):
            sharding = SingleDeviceSharding(topology.devices[0])
            shape = jax.ShapeDtypeStruct((8, 128), jnp.float32, sharding=sharding)
            return hs.Step(lambda x, *, y: x + y, args=(shape,), kwargs={"y": shape})
    """)
    artifact = capture_step(path)
    assert (artifact.num_devices, artifact.mesh_axes, artifact.mesh_device_ids) == (1, None, None)
    assert artifact.parameter_names == ["x", "y"]
    # Nothing in it is asynchronous across devices.
    assert artifact.schedule_path is None or artifact.schedule_path.is_file()


def test_pallas_kernels_know_their_chip(write_step) -> None:
    path = write_step("""
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import tpu as pltpu

        def kernel(x_ref, out_ref):
            out_ref[...] = x_ref[...] * 2

        def double(x):
            assert pltpu.get_tpu_info().chip_version
            return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        @hs.step(topology="v5e:2x4")
        def pallas(topology):
            x = shaped(topology, (128, 128), "data")
            specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
            return hs.Step(jax.shard_map(double, mesh=x.sharding.mesh, **specs), args=(x,))
    """)
    assert b"tpu_custom_call" in capture_step(path).hlo_path.read_bytes()


def test_a_step_with_a_second_mesh_of_its_own_is_traced_without_ours(write_step) -> None:
    path = write_step("""
        @hs.step(topology="v5e:2x4")
        def two_meshes(topology):
            mesh = topology.mesh(rows=8)
            fn = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"))
            return hs.Step(fn, args=(shaped(topology, (64, 128), "data"),))
    """)
    assert capture_step(path).mesh_axes == {"data": 8}


def test_warnings_of_the_compiler_and_of_python_are_kept(write_step) -> None:
    path = write_step("""
        @hs.step(topology="v5e:2x4")
        def resharding(topology):
            mesh = topology.mesh(x=2, y=2, z=2)
            place = lambda *spec: NamedSharding(mesh, P(*spec))

            def step(w, x):
                warnings.warn("odd shapes")
                y = jax.lax.with_sharding_constraint(x @ w, place(None, ("x", "y"))).reshape(16, 64, 1024)
                y = jax.lax.with_sharding_constraint(y, place("y", None, ("x", "z")))
                y = y.transpose(1, 0, 2).reshape(128, 8, 1024)
                return jax.lax.with_sharding_constraint(y, place("z", "x", "y"))

            shape = lambda *spec: jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16, sharding=place(*spec))
            return hs.Step(step, args=(shape("x"), shape(("y", "z"))))
    """)
    python, compiler = capture_step(path).warnings
    assert python.startswith("UserWarning: odd shapes (steps.py:")
    assert compiler.startswith("spmd_partitioner.cc: [SPMD] Involuntary full rematerialization")


def test_two_captures_at_once(write_step) -> None:
    body = """
        @hs.step(topology="v5e:2x4")
        def step(topology):
            return hs.Step(lambda x: x + {number}, args=(shaped(topology, (64, 128), "data"),))
    """
    paths = [write_step(body.format(number=number), name=f"step_{number}.py") for number in (1, 2, 2)]
    with ThreadPoolExecutor(3) as pool:
        artifacts = list(pool.map(capture_step, paths))
    assert artifacts[1].key == artifacts[2].key != artifacts[0].key
    assert all(artifact.hlo_path.is_file() for artifact in artifacts)


def test_the_users_own_dump_flags_do_not_hide_the_module(
    write_step, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/theirs --xla_dump_hlo_module_re=nothing")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_rwb_fusion=false")
    path = write_step("""
        @hs.step(topology="v5e:2x4")
        def step(topology):
            return hs.Step(lambda x: x - 1, args=(shaped(topology, (64, 128), "data"),))
    """)
    assert capture_step(path).flags == {"xla_tpu_rwb_fusion": "false"}
    assert not (tmp_path / "theirs").exists()


def test_importing_capture_imports_neither_jax_nor_numpy() -> None:
    script = "import sys, json, hloscope.capture; print(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"jax", "jaxlib", "numpy"}.isdisjoint(json.loads(result.stdout))


def test_a_file_that_says_itself_what_is_dumped(write_step: Callable[..., str], tmp_path: Path) -> None:
    # As the configuration of MaxText does, before jax has read the variable.
    flags = f"--xla_dump_to={tmp_path / 'theirs'} --xla_dump_hlo_module_re=jit_train_step"
    more = "--xla_dump_include_timestamp=true --xla_dump_compress_protos=true --xla_dump_max_hlo_modules=0"
    path = write_step(f"""
        os.environ["XLA_FLAGS"] = "{flags} {more}"

        @hs.step(topology="v5e:2x2")
        def double(topology):
            return hs.Step(lambda x: x + x, args=(shaped(topology, (512, 512), "data"),))
    """)
    artifact = capture_step(path)
    assert artifact.hlo_path.read_bytes().startswith(b"\n")
    assert artifact.module_name.startswith("jit_")
