"""Two steps of many small parts: one whose every part has a habit that costs, one with the same parts done well.

A part is (function, arguments); the parts of a step share nothing but the mesh, and are compiled as one.
"""

# pyright: basic

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs

TOKENS, EMBED, MLP, EXPERTS, LAYERS = 8192, 1024, 1536, 8, 6
BOTH = ("fsdp", "expert")


def _struct(mesh, spec, *shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def _manual(mesh, function, in_specs, out_specs):
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def gradient_sum(mesh, good):
    """HS204: a sum over devices in f32 of what is bf16 right after it."""

    def inside(x):
        x = jnp.tanh(x)
        x = x.astype(jnp.bfloat16) if good else x
        return jax.lax.psum_scatter(x, BOTH, scatter_dimension=0, tiled=True).astype(jnp.bfloat16)

    args = (_struct(mesh, P(BOTH), 4 * TOKENS, EMBED, dtype=jnp.float32),)
    return _manual(mesh, inside, P(BOTH), P(BOTH)), args


def experts(mesh, good):
    """HS202: weights gathered along their experts, or along their embedding."""
    axis, spec = ("fsdp", P("expert", "fsdp")) if good else ("expert", P("expert"))
    groups = EXPERTS // 2 if good else EXPERTS

    def inside(x, w, sizes):
        full = jax.lax.all_gather(w, axis, axis=1 if good else 0, tiled=True)
        return jax.lax.ragged_dot(x, full, sizes[0])

    args = (
        _struct(mesh, P(BOTH), TOKENS, EMBED),
        _struct(mesh, spec, EXPERTS, EMBED, MLP),
        _struct(mesh, P(BOTH), 4, groups, dtype=jnp.int32),
    )
    return _manual(mesh, inside, (P(BOTH), spec, P(BOTH)), P(BOTH)), args


def resharding(mesh, good):
    """HS207: from one sharding to another for which the partitioner knows no road but replication."""
    target = P("fsdp", "expert") if good else P("expert", "fsdp")

    def part(a, b):
        c = jax.lax.with_sharding_constraint(a @ b, NamedSharding(mesh, P("fsdp", "expert")))
        c = jnp.sin(c) if good else jnp.sin(c).reshape(TOKENS // 8, 8 * MLP)
        return jax.lax.with_sharding_constraint(c, NamedSharding(mesh, target)) * 2

    args = (_struct(mesh, P("fsdp"), TOKENS, EMBED), _struct(mesh, P(None, "expert"), EMBED, MLP))
    return part, args


def layers(mesh, good):
    """HS208: a scan over layers that gathers its weights within, and without remat saves what it gathered."""

    def layer(x, w):
        full = jax.lax.all_gather(w, BOTH, axis=0, tiled=True)
        return jnp.tanh(x @ full), None

    def loss(ws, x):
        body = jax.checkpoint(layer) if good else layer
        return jnp.sum(jax.lax.scan(body, x, ws)[0].astype(jnp.float32))

    def inside(ws, x):
        return ws - 0.1 * jax.grad(loss)(ws, x).astype(ws.dtype)

    args = (_struct(mesh, P(None, BOTH), LAYERS, EMBED, EMBED), _struct(mesh, P(BOTH), TOKENS, EMBED))
    return _manual(mesh, inside, (P(None, BOTH), P(BOTH)), P(None, BOTH)), args


def scales(mesh, good):
    """HS205: eighty small vectors, each gathered by itself, or as one."""

    def inside(scales, x):
        if good:
            scales = list(jax.lax.all_gather(jnp.stack(scales), BOTH, axis=1, tiled=True))
        for scale in scales:
            scale = scale if good else jax.lax.all_gather(scale, BOTH, axis=0, tiled=True)
            x = jnp.tanh(x * scale)
        return x

    args = ([_struct(mesh, P(BOTH), EMBED)] * 80, _struct(mesh, P(BOTH), TOKENS, EMBED))
    return _manual(mesh, inside, ([P(BOTH)] * 80, P(BOTH)), P(BOTH)), args


def carry(mesh, good):
    """HS303: a loop that reads its old carry after the new one is there; too large for VMEM."""

    def trip(x, scale):
        new = jnp.tanh(x * scale)
        return (new, None) if good else (new + jnp.roll(x, 1, axis=0), None)

    def part(x, scales):
        return jax.lax.scan(trip, x, scales)[0]

    args = (_struct(mesh, P(None, BOTH), 16 * TOKENS, 2 * EMBED), _struct(mesh, P(), LAYERS, 1))
    return part, args


def donation(mesh, good):
    """HS304: an argument that is donated though what replaces it has another type (donated in `_step`)."""

    def part(x):
        return jnp.tanh(x) if good else jnp.tanh(x).astype(jnp.bfloat16)

    return part, (_struct(mesh, P(BOTH), 5 * TOKENS, 3 * EMBED, dtype=jnp.float32),)


def discrete(mesh, good):
    """HS401: one parameter for each expert, stacked in the step; HS105: its rows weighted in f32."""

    def inside(x, ws, sizes, scale, token):
        w = ws if good else jnp.stack(ws)
        y = jax.lax.ragged_dot(x, w, sizes[0])
        y = y * (scale.astype(y.dtype) if good else scale)[:, None]
        return jnp.zeros_like(y).at[token].add(jax.lax.optimization_barrier(y)).astype(x.dtype)

    one = _struct(mesh, P(), EMBED, MLP)
    args = (
        _struct(mesh, P(BOTH), 8 * TOKENS, EMBED),
        _struct(mesh, P(), EXPERTS, EMBED, MLP) if good else [one] * EXPERTS,
        _struct(mesh, P(BOTH), 4, EXPERTS, dtype=jnp.int32),
        _struct(mesh, P(BOTH), 8 * TOKENS, dtype=jnp.float32),
        _struct(mesh, P(BOTH), 8 * TOKENS, dtype=jnp.int32),
    )
    weights = P() if good else [P()] * EXPERTS
    return _manual(mesh, inside, (P(BOTH), weights, P(BOTH), P(BOTH), P(BOTH)), P(BOTH)), args


def dense_experts(mesh, good):
    """HS403: every token goes through every expert, masked."""

    def part(x, w, ids, sizes):
        if good:
            return jax.lax.ragged_dot(x, w, sizes)
        mask = jax.nn.one_hot(ids, EXPERTS, dtype=x.dtype, axis=0)
        rows = jnp.einsum("et,td->etd", mask, x)
        return jnp.tanh(jnp.einsum("etd,edf->etf", rows, w)).sum(0)

    args = (
        _struct(mesh, P(), TOKENS, EMBED),
        _struct(mesh, P(), EXPERTS, EMBED, MLP),
        _struct(mesh, P(), TOKENS, dtype=jnp.int32),
        _struct(mesh, P(), EXPERTS, dtype=jnp.int32),
    )
    return part, args


def logging(mesh, good):
    """HS505: a value that is sent to the host in the middle of the step."""

    def part(x):
        x = jnp.tanh(x)
        if not good:
            jax.debug.callback(lambda value: None, x.sum())
        return x * 2

    return part, (_struct(mesh, P(BOTH), TOKENS, EMBED),)


PARTS = (donation, gradient_sum, experts, resharding, layers, scales, carry, discrete, dense_experts, logging)


def _step(topology: hs.Topology, *, good: bool) -> hs.Step:
    mesh = topology.mesh(fsdp=2, expert=2)
    functions, args = zip(*(part(mesh, good) for part in PARTS), strict=True)

    def step(*args):
        return tuple(function(*arguments) for function, arguments in zip(functions, args, strict=True))

    return hs.Step(step, args=args, donate_argnums=(0,))


@hs.step(topology="v6e:2x2")
def wasteful(topology: hs.Topology) -> hs.Step:
    return _step(topology, good=False)


@hs.step(topology="v6e:2x2")
def careful(topology: hs.Topology) -> hs.Step:
    return _step(topology, good=True)
