"""A step as a function to call: on the devices of this process, with its own donation, arguments and options."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs


def test_here_are_the_devices_of_this_process() -> None:
    here = hs.Topology("here")
    assert (here.platform, here.chip, here.num_devices) == ("cpu", "cpu", len(jax.devices()))
    assert here.devices == tuple(jax.devices())
    mesh = here.mesh(a=2, b=here.num_devices // 2)
    placed = jax.device_put(jnp.arange(8.0).reshape(2, 4), NamedSharding(mesh, P("a", "b")))
    assert float(jax.jit(jnp.sum)(placed)) == 28


def test_a_step_is_called_with_its_donation_static_arguments_and_shardings() -> None:
    mesh = hs.Topology("here").mesh(d=len(jax.devices()))
    rows = NamedSharding(mesh, P("d"))
    w = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=rows)
    given = jax.device_put(jnp.ones((8, 4)), rows)
    hs.Step(lambda w: w * 2, args=(w,)).jit()(given)
    assert not given.is_deleted()
    step = hs.Step(
        lambda w, times: w * times,
        args=(w, 2),
        donate_argnums=0,
        static_argnums=1,
        in_shardings=rows,
        out_shardings=rows,
    )
    assert step.jit()(given, 3).sharding == rows
    assert given.is_deleted()
    assert step.jit()(jnp.ones((8, 4)), 3).sharding == rows, "laid out as the step says"


def test_compiler_options_hold_where_it_runs() -> None:
    options = {"xla_no_such_option": True}
    with pytest.raises(Exception, match="xla_no_such_option"):
        hs.Step(lambda x: x + 1, args=(1.0,), compiler_options=options).jit()(1.0)
    jitted = jax.jit(jnp.sin)
    assert hs.Step(jitted, args=(1.0,)).jit() is jitted
    with pytest.raises(hs.UserError, match=r"to run it with compiler_options give them to jax\.jit"):
        hs.Step(jitted, args=(1.0,), compiler_options=options).jit()
