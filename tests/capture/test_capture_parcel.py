"""Packing a step of a running process: what comes out computes the same, on the topology's devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

# Run as a script, so that its functions are those of `__main__`, as a notebook's are.
HEADER = """
    import sys
    from functools import partial
    from pathlib import Path
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
    import hloscope as hs
    from hloscope.capture.parcel import has_shardings, pack, unpack

    def there_and_back(step, topology="cpu:8"):
        path = Path("parcel.pickle")
        path.write_bytes(pack(step).data)
        target = hs.Topology(topology)
        spec, builder = unpack(path, target)
        return spec, builder(target)

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    sharded = NamedSharding(mesh, P("data", "model"))

    @jax.custom_vjp
    def clipped(x):
        return jnp.minimum(x, 1.0)

    clipped.defvjp(lambda x: (jnp.minimum(x, 1.0), x), lambda x, g: (jnp.where(x < 1.0, g, 0.0),))

    @jax.checkpoint
    def layer(w, x):
        return clipped(jax.nn.gelu(x @ w))

    @partial(jax.jit, static_argnums=2, donate_argnums=0, in_shardings=(sharded, None), keep_unused=True)
    def step(w, x, power):
        loss = lambda w: (jax.lax.with_sharding_constraint(layer(w, x), sharded) ** power).mean()
        return w - jax.grad(loss)(w)

    w = jnp.arange(64.0).reshape(8, 8) / 64
    x = jnp.ones((8, 8))
"""


def run(folder: Path, body: str) -> str:
    script = folder / "notebook.py"
    script.write_text(dedent(HEADER) + dedent(body))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_comes_out_computes_the_same(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        spec, back = there_and_back(hs.Step(step, args=(w, x, 2)))
        assert (spec.name, spec.topology) == ("step", "cpu:8")
        assert back.fn is not step and has_shardings(back.fn)
        shapes = back.args[:2]
        assert all(isinstance(a, jax.ShapeDtypeStruct) for a in shapes) and back.args[2] == 2
        info = jax.tree.leaves(back.fn.trace(*shapes, 2).args_info)
        assert [i.donated for i in info] == [True, False]
        wanted, found = step(w + 0, x, 2), back.fn(w + 0, x, 2)
        np.testing.assert_array_equal(np.asarray(wanted), np.asarray(found))
        """,
    )


def test_meshes_lie_on_the_topology(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        placed = jax.device_put(w, sharded)
        _, back = there_and_back(hs.Step(lambda w: w + 1, args=(placed,)))
        (leaf,) = back.args
        assert leaf.sharding.spec == P("data", "model")
        assert dict(leaf.sharding.mesh.shape) == {"data": 4, "model": 2}
        assert leaf.sharding.mesh.axis_types == mesh.axis_types
        _, back = there_and_back(hs.Step(lambda w: w + 1, args=(w,)))
        assert back.args[0].sharding is None
        try:
            there_and_back(hs.Step(lambda w: w + 1, args=(placed,)), "cpu:4")
        except hs.UserError as error:
            assert "data=4 x model=2 has 8 places" in str(error), error
        else:
            raise AssertionError("a mesh of eight does not fit four devices")
        """,
    )


def test_a_builder_travels_with_its_mark(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        @hs.step(topology="v5e:2x4", rules={"batch": "data"})
        def train_step(topology, rules):
            return hs.Step(layer, args=(w, x))

        parcel = pack(train_step)
        assert (parcel.name, parcel.topology) == ("train_step", "v5e:2x4")
        assert parcel.file.endswith("notebook.py")
        path = Path("builder.pickle")
        path.write_bytes(parcel.data)
        spec, builder = unpack(path, hs.Topology("cpu:8"))
        assert spec.rules == {"batch": "data"} and builder.__name__ == "train_step"
        """,
    )


REFUSED = {
    "pack(3)": "hs.analyze takes a function and its arguments, an hs.Step, or a function marked @hs.step",
    "pack(hs.Step(lambda v: (v, lock)[0], args=(x,)))": "<lambda> holds something that cannot be sent",
    "hs.analyze(step, w, x, 2, quiet=True)": "step: tell what to compile for",
    "hs.analyze('train.py')": "hs.load('train.py') reads step files and dumps",
    "hs.analyze(hs.Step(layer, args=(w, x)), x)": "an hs.Step has its arguments already",
    "hs.analyze(layer, w, x, topology='cpu:8', quiet=True)": "cpu:8 is for running, not for compiling",
    "hs.load('report.json')": "is a report of an earlier run: hs.diff and hloscope diff read it",
}


def test_what_is_refused_is_told_in_a_line(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        f"""
        import threading
        lock = threading.Lock()
        Path("report.json").write_text('{{\\n "schema_version": 1,\\n "target": {{}}}}')
        for made in {list(REFUSED)!r}:
            try:
                eval(made)
            except hs.UserError as error:
                print(error)
        """,
    ).splitlines()
    assert len(told) == len(REFUSED)
    assert [(said, line) for said, line in zip(REFUSED.values(), told, strict=True) if said not in line] == []
