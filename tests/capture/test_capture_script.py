"""A file without `@hs.step` runs as a script, and what it compiles, or calls as its step, is captured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hloscope import load
from hloscope.capture import Artifact, Event, capture_step
from hloscope.capture.script import is_step_file
from hloscope.cli.main import main
from hloscope.errors import CompileError, UserError

WriteStep = Callable[..., str]

TRAIN = """
    import argparse
    from functools import partial
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    import beside

    @partial(jax.jit, static_argnums=(0, 2), donate_argnums=1)
    def train_step(config, params, scale, batch):
        def loss(params):
            hidden = jax.nn.gelu(batch["x"] @ params["wi"])
            hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(beside.mesh, P("data")))
            return ((hidden @ params["wo"]) ** 2).mean() * scale
        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), value

    @jax.jit
    def init(key):
        return {"wi": jax.random.normal(key, (width, 512)), "wo": jax.random.normal(key, (512, width))}

    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, required=True)
        width = parser.parse_args().width
        beside.mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model"))
        params = jax.device_put(init(jax.random.key(0)), NamedSharding(beside.mesh, P("data", "model")))
        batch = {"x": jax.device_put(np.ones((64, width), "float32"), NamedSharding(beside.mesh, P("data")))}
        for _ in range(2):
            params, loss = train_step("config", params, 2, batch)
            raise RuntimeError("the step was run")
"""
AOT = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), P("data"))
    shape = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=sharding)

    def train_step(x):
        return jnp.sin(x @ x.T).sum()

    def small_step(x):
        return x + 1

    small = jax.jit(small_step).lower(shape).compile()
    step = jax.jit(train_step).lower(shape).compile()
    print(step.memory_analysis().temp_size_in_bytes)
    step(jnp.ones((512, 512)))
"""
ALONE = """
    import jax, jax.numpy as jnp

    def update(weights, x):
        return weights - jax.grad(lambda w: ((x @ w) ** 2).mean())(weights)

    class Trainer:
        @jax.jit
        def evaluate(x):
            return x.mean()

        step = staticmethod(jax.jit(update, donate_argnums=0))

    Trainer.evaluate(jnp.ones((4, 128)))
    Trainer.step.lower(jnp.ones((128, 128)), jnp.ones((4, 128))).compile()
    raise RuntimeError("it went on")
"""

EXPLICIT = """
    import jax, jax.numpy as jnp
    from jax.sharding import AxisType, PartitionSpec as P

    jax.set_mesh(jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Explicit,)))

    @jax.jit
    def train_step(w, x):
        return w - jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    w, x = jax.device_put(jnp.ones((256, 256)), P()), jax.device_put(jnp.ones((64, 256)), P("data"))
    train_step(w, x)
    raise RuntimeError("the step was run")
"""


def message(target: str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        capture_step(target, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.tpu_compile
def test_the_first_call_of_a_training_step_is_moved_to_the_topology(
    write_step: WriteStep, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("mesh = None\n")
    path = write_step(TRAIN, header="", name="train.py")
    artifact = capture_step(path, topology="v5e:2x4", arguments=["--width", "256"])
    assert (artifact.step_name, artifact.module_name) == ("train_step", "jit_train_step")
    assert (artifact.topology, artifact.num_devices) == ("v5e:2x4", 8)
    assert artifact.mesh_axes == {"data": 4, "model": 2}
    assert sorted(artifact.mesh_device_ids or []) == list(range(8))
    assert artifact.parameter_names == ["params['wi']", "params['wo']", "batch['x']"]
    stats = artifact.memory_stats
    assert stats is not None
    assert stats.argument_bytes == 2 * 256 * 512 * 4 // 8 + 64 * 256 * 4 // 4
    assert stats.alias_bytes == 2 * 256 * 512 * 4 // 8  # donated, as the script does
    (note, *_) = artifact.warnings
    assert note == (
        "the first call of train_step was taken as the step and moved to v5e:2x4; it called init before; "
        "train.py:NAME takes another"
    )
    # The arguments are the script's own, and another width is another step.
    assert capture_step(path, topology="v5e:2x4", arguments=["--width", "256"]).path == artifact.path
    assert "required: --width" in message(path, topology="v5e:2x4")
    assert "has 8 places" not in message(path, topology="v5e:2x4", arguments=["--width", "oops"])


@pytest.mark.tpu_compile
def test_every_tpu_compile_of_a_script_is_kept(
    write_step: WriteStep, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_step(AOT, header="", name="aot.py")
    assert main(["analyze", path, "--json", "-", "--quiet"]) == 2
    assert "aot.py compiles several steps: train_step (" in capsys.readouterr().err
    assert main(["analyze", f"{path}:train_step", "--json", "-", "--quiet"]) == 0
    target = json.loads(capsys.readouterr().out)["target"]
    assert (target["module"], target["topology"], target["mesh"]) == (
        "jit_train_step",
        "v5e:2x4",
        {"data": 8},
    )
    assert "called: small_step" not in message(f"{path}:nope")


COUNTED = """
    import jax, jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    def count(event, seconds, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            open({counted!r}, "a").write("1")

    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices
    shape = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, sharding=SingleDeviceSharding(devices[0]))
    lowered = jax.jit(lambda x: jnp.sin(x @ x.T)).lower(shape)
    jax.monitoring.register_event_duration_secs_listener(count)
    step = lowered.compile()
    lowered.compile()
    try:
        {uses}
    except (AttributeError, RuntimeError, TypeError) as error:
        print(error)  # it cannot run here, whoever says so
    open({counted!r}, "a").write(" ")
"""


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("uses", "again"),
    [
        ("print(step.memory_analysis().temp_size_in_bytes, step.memory_analysis())", ""),
        ("step.memory_analysis().no_such_figure", "1"),
        ("step.cost_analysis(); step.as_text()", "1"),
        ("step(3)", ""),
    ],
)
def test_what_a_script_compiles_for_tpus_is_compiled_once(
    uses: str, again: str, write_step: WriteStep, tmp_path: Path
) -> None:
    counted = tmp_path / "compiles"
    path = write_step(COUNTED.format(counted=str(counted), uses=uses), header="")
    first = capture_step(path)
    counted.write_text("")
    events: list[Event] = []
    assert capture_step(path, on_event=events.append) == first
    assert counted.read_text() == f"{again} "
    assert ("compile" in {e.stage for e in events}, events[-1].detail) == (False, "cached")


SIZES = """
    import os, threading
    import jax, jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices[0]

    def train(x):
        return jnp.sin(x @ x.T)

    def compile(rows):
        shape = jax.ShapeDtypeStruct((rows, 512), jnp.bfloat16, sharding=SingleDeviceSharding(device))
        jax.jit(train).trace(shape).lower().compile()
"""


@pytest.mark.tpu_compile
@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(3)", "os.abort()"])
def test_what_a_script_compiled_outlives_it(end: str, write_step: WriteStep) -> None:
    path = write_step(f"{SIZES}\n    compile(512)\n    {end}\n", header="")
    for target in (path, f"{path}:train"):
        assert capture_step(target).step_name == "train"


@pytest.mark.tpu_compile
def test_a_script_that_compiles_in_several_threads(write_step: WriteStep) -> None:
    body = """
    threads = [threading.Thread(target=compile, args=(rows,)) for rows in (256, 512, 1024)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    """
    said = message(write_step(SIZES + body, header="", name="sizes.py"))
    assert "sizes.py compiles train in 3 ways, with other arguments or options" in said
    assert said.endswith("or take the first as {}:train".format(said.partition(" compiles")[0]))


@pytest.mark.tpu_compile
def test_a_script_that_compiles_more_than_the_store_keeps(
    write_step: WriteStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLOSCOPE_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("HLOSCOPE_CACHE_GIB", "0")
    said = message(write_step(f"{SIZES}\n    compile(256)\n    compile(512)\n", header=""))
    assert "compiles more than the store keeps: raise HLOSCOPE_CACHE_GIB, or choose one step as" in said


@pytest.mark.tpu_compile
def test_a_script_that_exports_its_step(write_step: WriteStep) -> None:
    exports = "jax.export.export(Trainer.step)(jnp.ones((128, 128)), jnp.ones((4, 128)))"
    body = ALONE.replace("    Trainer.step.lower(", f"    {exports}\n    Trainer.step.lower(")
    path = write_step(body.replace("import jax,", "import jax, jax.export,"), header="")
    assert capture_step(path, topology="v5e:2x4").step_name == "update"


@pytest.mark.tpu_compile
def test_a_script_that_compiles_the_same_twice(write_step: WriteStep, tmp_path: Path) -> None:
    counted = tmp_path / "compiles"
    path = write_step(COUNTED.format(counted=str(counted), uses="step.as_text()"), header="")
    assert capture_step(path, fresh=True).key == capture_step(path, fresh=True).key


@pytest.mark.tpu_compile
def test_what_is_said_of_one_compile_is_no_word_on_the_next(write_step: WriteStep) -> None:
    body = """
    def huge(x):
        y = jnp.sin(x @ x.T)
        return (y @ y).sum()

    import warnings
    compile(512)
    warnings.warn("the next is large")
    shape = jax.ShapeDtypeStruct((200_000, 1024), jnp.bfloat16, sharding=SingleDeviceSharding(device))
    jax.jit(huge).lower(shape).compile()
    """
    with pytest.raises(CompileError, match=r"does not fit: it needs 74\.\d+ GiB of device memory") as caught:
        capture_step(write_step(SIZES + body, header=""))
    failed = Artifact.load(Path(caught.value.dump_dir or ""))
    assert failed.warnings[0].startswith("UserWarning: the next is large")


@pytest.mark.tpu_compile
def test_that_a_script_does_not_fit_is_found_out_once(
    write_step: WriteStep, capsys: pytest.CaptureFixture[str]
) -> None:
    body = AOT.replace("(512, 512)", "(200_000, 1024)").replace(
        "jnp.sin(x @ x.T)", "((y := jnp.sin(x @ x.T)) @ y)"
    )
    path = write_step(body.replace("small = ", "# "), header="", name="large.py")
    said: list[tuple[str, str]] = []
    err = ""
    for _ in range(2):
        assert main(["analyze", path]) == 3
        out, err = capsys.readouterr()
        said.append((out, err.splitlines()[-1]))
    assert said[0] == said[1]
    assert said[0][1].startswith("error: the step does not fit")
    assert "failed to compile before, taken from the store" in err
    assert "compiling" not in err


@pytest.mark.tpu_compile
def test_a_script_of_one_device(write_step: WriteStep) -> None:
    artifact = capture_step(write_step(ALONE, header=""), topology="v5e:2x4")
    assert (artifact.step_name, artifact.num_devices, artifact.mesh_axes) == ("update", 1, None)
    assert any("compiled for one of the 8 devices of v5e:2x4" in note for note in artifact.warnings)
    assert artifact.parameter_names == ["weights", "x"]
    assert artifact.memory_stats is not None
    assert artifact.memory_stats.alias_bytes == 128 * 128 * 4


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("calls", "taken"),
    [
        # The moments of an optimizer have the parameters' shapes, but it is not the step that makes them.
        ("moments = jax.jit(moments_like)(w); train(w, moments, x); boom()", "train"),
        # Without a batch, or where nothing is given back: the largest at the end.
        ("decay(w); train(w[:8, :8], w[:8, :8], x[:, :8])", "train"),
        ("total(x[:1]); decay(w); total(x)", "decay"),
        ("total(w[:1]); total(w)", "total"),
    ],
)
def test_which_call_is_the_step(calls: str, taken: str, write_step: WriteStep) -> None:
    path = write_step(
        f"""
        import jax, jax.numpy as jnp

        def moments_like(w):
            return {{"mu": jnp.zeros_like(w), "nu": jnp.zeros_like(w)}}

        @jax.jit
        def train(w, moments, x):
            return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), moments

        @jax.jit
        def decay(w):
            return w * 0.9

        @jax.jit
        def total(x):
            return x.sum()

        w, x = jnp.ones((256, 256)), jnp.ones((64, 256))
        {calls}
        """,
        header="",
    )
    artifact = capture_step(path, topology="v5e:2x2")
    assert artifact.step_name == taken
    which = "the first call of" if taken == "train" else "no call looks like a training step: the largest, of"
    assert any(note.startswith(f"{which} {taken}") for note in artifact.warnings)


@pytest.mark.tpu_compile
def test_a_script_that_sets_its_mesh(write_step: WriteStep) -> None:
    path = write_step(EXPLICIT, header="")
    artifact = capture_step(path, topology="v5e:2x4")
    assert (artifact.mesh_axes, artifact.parameter_names) == ({"data": 8}, ["w", "x"])
    assert artifact.memory_stats is not None
    assert artifact.memory_stats.argument_bytes == 256 * 256 * 4 + 64 * 256 * 4 // 8
    # What was traced to move it stands where the script calls it.
    sources = {str(i.source) for i in load(artifact.path).module.entry.instructions if i.source}
    assert sources
    assert all(source.startswith(f"{path}:") for source in sources)
    assert artifact.hbm_limit_bytes == round(15.75 * 2**30)


@pytest.mark.parametrize(
    ("body", "options", "said"),
    [
        ("import numpy as np\nprint(np.ones(3).sum())", {}, "it called and compiled no jax.jit function"),
        (
            "import jax\nstep = jax.jit(lambda x: x + 1)\nstep.__name__\nstep(1.0)",
            {},
            "runs <lambda> on the host: give --topology, e.g. v5e:2x4",
        ),
        ("import sys\nsys.exit(4)", {}, "the script ended itself: SystemExit(4)"),
        ("import nowhere", {}, "ModuleNotFoundError: No module named 'nowhere'"),
        ("print(1)", {"topology": "v5litepod-8"}, "did you mean 'v5e:2x4'"),
    ],
)
def test_what_is_no_step_says_so(
    body: str, options: dict[str, str], said: str, write_step: WriteStep
) -> None:
    assert said in message(write_step(body, header=""), **options)


@pytest.mark.tpu_compile
@pytest.mark.parametrize("body", ["mapped(w, x)", "w - jax.grad(lossy)(w, placed(x))"])
def test_devices_that_only_the_body_names(body: str, write_step: WriteStep) -> None:
    """Arrays as `jnp.ones` makes them lie nowhere in particular: where they go is for the compiler to choose."""
    path = write_step(
        f"""
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()), ("x",))
        def lossy(w, x):
            return jnp.mean((x @ w) ** 2)
        def placed(x):
            return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x")))
        def update(w, x):
            return w - jax.lax.pmean(jax.grad(lossy)(w, x), "x")
        mapped = jax.shard_map(update, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
        @jax.jit
        def step(w, x):
            return {body}
        step(jnp.ones((128, 128)), jnp.ones((64, 128)))
        """,
        header="",
    )
    artifact = capture_step(path, topology="v5e:2x2")
    assert (artifact.num_devices, artifact.mesh_axes) == (4, {"x": 4})
    w, x = (p.shape.dimensions for p in load(artifact.path).module.entry.parameters)
    assert (tuple(w), tuple(x)) == ((128, 128), (16, 128))


def test_a_call_that_cannot_be_moved_says_why(write_step: WriteStep) -> None:
    body = """
        import os
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        x = jax.device_put(jnp.ones((8, 8)), NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data")))
        @jax.jit
        def step(x):
            return x + 1
        @jax.jit
        def loud(x):
            jax.debug.callback(print, x.sum())
            return x + 1
        step(x)
    """
    path = write_step(body, header="")
    said = message(path, topology="v5e:2x4")
    assert said.startswith("the script's mesh data=4 has 4 places, but v5e:2x4 has 8 devices")
    assert "no function named 'nope' was called or compiled for TPUs; called: step" in message(
        f"{path}:nope", topology="v5e:2x4"
    )
    loud = write_step(body.replace("step(x)\n", "loud(x)\n"), header="", name="loud.py")
    assert message(loud, topology="v5e:2x2").startswith(
        "loud cannot be moved to TPUs as it is called here (it calls back to the host: debug_callback): leave that out"
    )


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("import hloscope as hs\n@hs.step\ndef f(t): ...", True),
        ("import hloscope\nf = hloscope.step('v5e:2x4')(g)", True),
        ("from hloscope import step as s\n@s\ndef f(t): ...", True),
        ("import hloscope as hs\nhs.load('x')\noptimizer.step()", False),
        ("import jax\nf = jax.jit(g)", False),
        ("def f(:", False),
    ],
)
def test_which_files_mark_a_step(text: str, marks: bool, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(text)
    assert is_step_file(tmp_path / "f.py") is marks


def test_arguments_are_for_scripts(tmp_path: Path) -> None:
    assert main(["analyze", str(tmp_path), "--", "--steps", "3"]) == 2
