"""A ring-of-experts mixture-of-experts layer over a mesh with the axes `fsdp` and `expert`.

Each device gathers the tokens of its expert group (the devices that differ in `expert` only), packs those
routed to its own experts into one buffer of rows, ordered by expert, multiplies, and adds the results back to
their tokens, which a reduce-scatter returns to where they came from.

The buffer has a fixed number of rows; only the first `limit`, the sum of the group sizes, hold tokens. The
rows behind them are **dead**: whatever they hold, they must not reach a result. Nothing here multiplies them
away (garbage may be NaN): `lax.ragged_dot` leaves them out, and `take_rows` and `put_rows` drop them because
their index lies out of range. Where more tokens arrive than fit, those of the last experts are dropped.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from _transformer import ROUTING, Parameter, Params
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, PartitionSpec

TOKENS = PartitionSpec(("fsdp", "expert"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Sizes of the layer.

    `ragged_buffer_factor` is the room in the buffer over an even spread of the tokens; at the size of the
    `expert` axis nothing can overflow. `wo_fsdp` names the dimension of `wo` that FSDP shards, "embed" or
    "mlp". `dead_rows`, where given, is written over the dead rows before each use, forward and backward: no
    result may depend on it.
    """

    count: int
    top_k: int
    embed: int
    mlp: int
    ragged_buffer_factor: float
    wo_fsdp: str = "embed"
    dead_rows: float | None = None

    def buffer_rows(self, group_tokens: int, expert_axis: int) -> int:
        """Rows of the buffer on each device, for the tokens of a whole expert group."""
        rows = Fraction(group_tokens * self.top_k, expert_axis) * Fraction(self.ragged_buffer_factor)
        if rows.denominator != 1:
            raise ValueError(f"the row buffer would have {float(rows)} rows: change ragged_buffer_factor")
        return rows.numerator

    def parameters(self) -> dict[str, Parameter]:
        """Parameters of one layer.

        router [embed, experts]; wi [experts, embed, 2*mlp], gate and up side by side; wo [experts, mlp,
        embed].
        """
        wo_spec = {
            "embed": PartitionSpec("expert", None, "fsdp"),
            "mlp": PartitionSpec("expert", "fsdp", None),
        }[self.wo_fsdp]
        embed, mlp = self.embed, self.mlp
        return {
            "router": Parameter((embed, self.count), PartitionSpec("fsdp", None), embed**-0.5),
            "wi": Parameter((self.count, embed, 2 * mlp), PartitionSpec("expert", "fsdp", None), embed**-0.5),
            "wo": Parameter((self.count, mlp, embed), wo_spec, mlp**-0.5),
        }


class Rows(NamedTuple):
    """Where the rows of a device's buffer come from; a slot is one of the top_k choices of one token.

    token and slot, both i32 [rows], lie out of range in dead rows, and no slot comes twice; group_sizes is
    i32 [local experts], limit their sum.
    """

    token: Array
    slot: Array
    group_sizes: Array
    limit: Array


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def take_rows(source: Array, index: Array, size: int, unique: bool = False) -> Array:
    """source[index] along the first dimension, whose size is `size`; out of range, any row.

    Its own gradient is there for the dead rows: that of a clipped gather would add their garbage to the last
    row, that of a filling one costs a pass over the whole buffer in each direction. `unique` promises that no
    index comes twice, which spares the gradient a sort.
    """
    del size, unique
    return source.at[index].get(mode="clip")


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def put_rows(rows: Array, index: Array, size: int, unique: bool = False) -> Array:
    """The transpose of `take_rows`: rows added up by index into `size` rows, dropped where out of range."""
    empty = jnp.zeros((size, *rows.shape[1:]), rows.dtype)
    return empty.at[index].add(rows, mode="drop", unique_indices=unique)


take_rows.defvjp(
    lambda source, index, size, unique=False: (take_rows(source, index, size, unique), index),
    lambda size, unique, index, gradient: (put_rows(gradient, index, size, unique), None),
)
put_rows.defvjp(
    lambda rows, index, size, unique=False: (put_rows(rows, index, size, unique), index),
    lambda size, unique, index, gradient: (take_rows(gradient, index, size, unique), None),
)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def fill_dead_rows(rows: Array, limit: Array, value: float) -> Array:
    """Rows with `value` in place of the dead ones, in the gradient too."""
    alive = jnp.arange(rows.shape[0]) < limit
    return jnp.where(alive.reshape(-1, *[1] * (rows.ndim - 1)), rows, value)


fill_dead_rows.defvjp(
    lambda rows, limit, value: (fill_dead_rows(rows, limit, value), limit),
    lambda value, limit, gradient: (fill_dead_rows(gradient, limit, value), None),
)


def route(tokens: Array, router: Array, top_k: int) -> tuple[Array, Array]:
    """The experts of each token, i32 [tokens, top_k], and their weights, f32, which add up to one."""
    logits = jnp.dot(tokens, router.astype(tokens.dtype), preferred_element_type=jnp.float32)
    weights, choices = lax.top_k(jax.nn.softmax(logits, axis=-1), top_k)
    return choices, weights / jnp.sum(weights, axis=-1, keepdims=True)


def pack(choices: Array, first: Array, local: int, buffer_rows: int) -> Rows:
    """Sorts the slots of choices [tokens, top_k] that went to experts [first, first + local) by expert."""
    tokens, top_k = choices.shape
    expert = choices.reshape(-1) - first
    expert = jnp.where((expert >= 0) & (expert < local), expert, local)
    order = jnp.argsort(expert, stable=True)[:buffer_rows]
    arrived = jnp.bincount(expert, length=local + 1)[:local]
    ends = jnp.minimum(jnp.cumsum(arrived), buffer_rows)
    limit = ends[-1]
    # Fewer slots than rows: pad, so that the buffer has its size all the same.
    order = jnp.pad(order, (0, buffer_rows - order.shape[0]))
    row = jnp.arange(buffer_rows)
    return Rows(
        token=jnp.where(row < limit, order // top_k, tokens),
        slot=jnp.where(row < limit, order, tokens * top_k + row),
        group_sizes=jnp.diff(ends, prepend=0).astype(jnp.int32),
        limit=limit,
    )


def device_layer(experts: Experts, x: Array, router: Array, wi: Array, wo: Array) -> Array:
    """One device's share: x [sequences, length, embed] of its own tokens, wi and wo of its own experts."""
    own = x.reshape(-1, experts.embed)
    gather = partial(lax.all_gather, axis_name="expert", tiled=True)
    choices, weights = map(gather, route(own, router, experts.top_k))
    tokens = gather(own)
    local, group = wi.shape[0], tokens.shape[0]
    buffer_rows = experts.buffer_rows(group, lax.axis_size("expert"))
    rows = pack(choices, lax.axis_index("expert") * local, local, buffer_rows)
    rows = Rows(*(checkpoint_name(field, ROUTING) for field in rows))

    def buffer(values: Array) -> Array:
        return values if experts.dead_rows is None else fill_dead_rows(values, rows.limit, experts.dead_rows)

    packed = buffer(take_rows(tokens, rows.token, group))
    gate, up = jnp.split(buffer(lax.ragged_dot(packed, wi, rows.group_sizes)), 2, axis=-1)
    activated = buffer(jax.nn.silu(gate) * up)
    out = buffer(lax.ragged_dot(activated, wo, rows.group_sizes))
    weight = buffer(take_rows(weights.reshape(-1), rows.slot, weights.size, True))
    weighted = buffer((out.astype(jnp.float32) * weight[:, None]).astype(out.dtype))
    combined = put_rows(weighted, rows.token, group)
    return lax.psum_scatter(combined, "expert", tiled=True).reshape(x.shape)


def moe_layer(experts: Experts, mesh: Mesh, x: Array, layer: Params) -> Array:
    """The layer over x [batch, sequence, embed], whose sequences are spread over both mesh axes.

    The weights enter whole along `fsdp`: the compiler gathers them, and reduce-scatters their gradients.
    """
    return jax.shard_map(
        partial(device_layer, experts),
        mesh=mesh,
        in_specs=(TOKENS, PartitionSpec(), PartitionSpec("expert"), PartitionSpec("expert")),
        out_specs=TOKENS,
    )(x, layer["router"].astype(x.dtype), layer["wi"].astype(x.dtype), layer["wo"].astype(x.dtype))
