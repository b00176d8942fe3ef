"""Two steps in which much is done that need not be: what the rules are for that no shared module shows.

`one_device` holds what a single device can waste, `sharded` what devices can waste among themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hloscope as hs
from hloscope_kernels import ragged_dot

ROWS, GROUPS, EMBED, MLP = 8192, 4, 512, 1024
# The least sizes of the region in which our kernel was found faster than XLA's.
REGION_ROWS, REGION_GROUPS, REGION_EMBED, REGION_MLP = 4096, 16, 1024, 2048
LAYERS, WIDTH = 6, 2048
WHOLE = PartitionSpec()


def _structs(mesh: Mesh) -> Callable[..., jax.ShapeDtypeStruct]:
    def struct(*shape: int, spec: PartitionSpec = WHOLE, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    return struct


def _stacked_and_widened(x, experts, sizes, scale):
    """A grouped matmul by weights that are one parameter for each expert; a scale in f32 widens its rows."""
    hidden = jax.lax.ragged_dot(x, jnp.stack(experts), sizes)
    wide = hidden.astype(jnp.float32) * scale
    return wide, jnp.sort(wide, axis=1)


def _dense(x, w, ends):
    """Every row times the weights of every expert, with the rows of others masked."""
    row = jnp.arange(ROWS)[None, :, None]
    starts = jnp.pad(ends[:-1], (1, 0))
    mine = (row >= starts[:, None, None]) & (row < ends[:, None, None])
    return jnp.einsum("gmk,gkn->mn", jnp.where(mine, x[None], 0), w)


def _carried(a, b):
    """A scan whose carry changes places, so that nothing can be updated where it lies."""

    def body(state, _):
        a, b = state
        return (b, jnp.tanh(a)), None

    return jax.lax.scan(body, (a, b), None, length=LAYERS)[0]


def _own_kernels(x, w, sizes, rows, region_w, region_sizes):
    """Grouped matmuls by our kernel, asked for outside of its region and inside."""
    return (
        ragged_dot(x, w, sizes, implementation="pallas_tpu"),
        ragged_dot(rows, region_w, region_sizes, implementation="pallas_tpu"),
    )


def _one_device(mesh, old, a, b, x, experts, w, sizes, scale, rows, region_w, region_sizes):
    jax.debug.print("scale {}", scale[0, 0])
    kernels = jax.shard_map(_own_kernels, mesh=mesh, in_specs=WHOLE, out_specs=WHOLE, check_vma=False)
    return (
        _stacked_and_widened(x, experts, sizes, scale),
        _dense(x, w, sizes),
        kernels(x, w, sizes, rows, region_w, region_sizes),
        _carried(a, b),
        old.astype(jnp.bfloat16),
    )


@hs.step(topology="v6e:2x2")
def one_device(topology: hs.Topology) -> hs.Step:
    mesh = topology.mesh(x=topology.num_devices)
    struct = _structs(mesh)
    f32, s32 = jnp.float32, jnp.int32
    args = (
        struct(1024, 1024, dtype=f32),
        *(struct(8192, 4096, dtype=f32) for _ in range(2)),
        struct(ROWS, EMBED),
        [struct(EMBED, MLP) for _ in range(GROUPS)],
        struct(GROUPS, EMBED, MLP),
        struct(GROUPS, dtype=s32),
        struct(ROWS, 1, dtype=f32),
        struct(REGION_ROWS, REGION_EMBED),
        struct(REGION_GROUPS, REGION_EMBED, REGION_MLP),
        struct(REGION_GROUPS, dtype=s32),
    )
    return hs.Step(partial(_one_device, mesh), args=args, donate_argnums=(0,))


def _gathered_experts(tokens, w, sizes):
    return jax.lax.ragged_dot(tokens, jax.lax.all_gather(w, "x", tiled=True), sizes)


def _wide(x, narrow):
    """What is exchanged in f32 and rounded afterwards, or was rounded before."""
    moved = jax.lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True)
    devices = jax.lax.axis_size("x")
    ring = [(device, (device + 1) % devices) for device in range(devices)]
    # Of readers that agree on a type the compiler moves the conversion before the gather itself.
    gathered = jax.lax.all_gather(jnp.sin(x), "x", tiled=True)
    return (
        moved.astype(jnp.bfloat16),
        jax.lax.psum(x.astype(jnp.bfloat16).astype(jnp.float32), "x"),
        jax.lax.psum_scatter(x, "x", tiled=True).astype(jnp.bfloat16),
        jax.lax.ppermute(narrow.astype(jnp.float32), "x", ring),
        (gathered.astype(jnp.bfloat16), gathered.astype(jnp.float8_e5m2)),
    )


def _resharded(x):
    """From rows to columns by way of the whole array on every device."""
    columns = x.shape[1] // jax.lax.axis_size("x")
    whole = jax.lax.all_gather(x, "x", tiled=True)
    return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index("x") * columns, columns, axis=1)


def _saved(layers, x):
    """The gradient of layers that gather their weights, without a checkpoint: what was gathered is saved."""

    def loss(layers):
        def body(x, w):
            return jnp.tanh(x @ jax.lax.all_gather(w, "x", tiled=True)), None

        return jnp.sum(jax.lax.scan(body, x, layers)[0].astype(jnp.float32))

    return jax.grad(loss)(layers)


def _sharded(tokens, w, sizes, wide, layers, x):
    return _gathered_experts(tokens, w, sizes), _wide(wide, x), _resharded(x), _saved(layers, x)


@hs.step(topology="v6e:2x2")
def sharded(topology: hs.Topology) -> hs.Step:
    mesh = topology.mesh(x=topology.num_devices)
    struct = _structs(mesh)
    rows, columns, layers = PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, "x")
    args = (
        struct(4 * ROWS, EMBED, spec=rows),
        struct(2 * GROUPS, EMBED, MLP, spec=rows),
        struct(2 * GROUPS, dtype=jnp.int32),
        struct(WIDTH, WIDTH, spec=rows, dtype=jnp.float32),
        struct(LAYERS, WIDTH, WIDTH, spec=layers),
        struct(ROWS, WIDTH, spec=rows),
    )
    step = jax.shard_map(
        _sharded,
        mesh=mesh,
        in_specs=tuple(a.sharding.spec for a in args),
        out_specs=(rows, (rows, WHOLE, rows, rows, WHOLE), columns, layers),
        check_vma=False,
    )
    return hs.Step(step, args=args)
