"""The trunk that the examples share: a decoder-only transformer with grouped-query attention.

The feed-forward part is the caller's: dense in `dense_train_step.py`, a ring of experts (`_moe.py`) in the
others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

Params = dict[str, Array]
FeedForward = Callable[[Array, Params], Array]

# Saved by the forward pass of each layer, besides its input. With the attention's output the backward pass
# recomputes the feed-forward part and the projections, but does not run the whole attention once more to get
# there. A feed-forward part may name what is small and dear to make again, such as the order of a sort.
ATTENTION_OUT, ROUTING = "attention_out", "routing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """Sizes of the trunk and the mesh axes that it is laid out over.

    `batch` counts sequences over all devices, `sequence` their length in tokens.
    """

    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    batch: int
    sequence: int
    query_block: int
    batch_axes: tuple[str, ...]
    tensor_axis: str | None = None
    rope_base: float = 1e6
    dtype: DTypeLike = jnp.bfloat16

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads do not share {self.kv_heads} key heads evenly")
        if self.sequence % self.query_block:
            raise ValueError(f"{self.sequence} tokens are no whole number of {self.query_block}-query blocks")


class Parameter(NamedTuple):
    """Shape, layout over the mesh and initial scale of one parameter; scale None starts it at one."""

    shape: tuple[int, ...]
    spec: PartitionSpec
    scale: float | None


Parameters = dict[str, dict[str, Parameter]]


def stacked(layers: int, parameters: dict[str, Parameter]) -> dict[str, Parameter]:
    """The same parameters with a leading, unsharded layer dimension, as `lax.scan` wants them."""
    return {
        name: Parameter((layers, *p.shape), PartitionSpec(None, *p.spec), p.scale)
        for name, p in parameters.items()
    }


def trunk_parameters(trunk: Trunk, feed_forward: dict[str, Parameter]) -> Parameters:
    """Every parameter of the model, `feed_forward` being those of one layer's feed-forward part.

    FSDP shards each matrix on its embed dimension; the norms are too small to be worth it.
    """
    embed, heads, kv, dim = trunk.embed, trunk.heads, trunk.kv_heads, trunk.head_dim
    scale, tensor = embed**-0.5, trunk.tensor_axis
    whole, project = PartitionSpec(), PartitionSpec("fsdp", tensor, None)
    layer = {
        "attention_norm": Parameter((embed,), whole, None),
        "query": Parameter((embed, heads, dim), project, scale),
        "key": Parameter((embed, kv, dim), project, scale),
        "value": Parameter((embed, kv, dim), project, scale),
        "out": Parameter((heads, dim, embed), PartitionSpec(tensor, None, "fsdp"), (heads * dim) ** -0.5),
        "feed_forward_norm": Parameter((embed,), whole, None),
    }
    ends = {
        "embedding": Parameter((trunk.vocab, embed), PartitionSpec(None, "fsdp"), 1.0),
        "norm": Parameter((embed,), whole, None),
        "head": Parameter((embed, trunk.vocab), PartitionSpec("fsdp", tensor), scale),
    }
    return {"ends": ends, "layers": stacked(trunk.layers, layer | feed_forward)}


def rms_norm(x: Array, weight: Array) -> Array:
    """x / rms(x) * weight over the last dimension, in f32 inside."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * weight).astype(x.dtype)


def rope(x: Array, base: float) -> Array:
    """Rotary position embedding of x [batch, sequence, heads, head_dim]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def causal_attention(query: Array, key: Array, value: Array, block: int) -> Array:
    """Causal grouped-query attention, one block of queries at a time.

    query [batch, sequence, heads, head_dim], key and value [batch, sequence, kv_heads, head_dim]. No more
    than [batch, heads, block, sequence] logits are alive at once, in the backward pass neither.
    """
    batch, length, heads, dim = query.shape
    kv = key.shape[2]
    blocks = query.reshape(batch, length // block, block, kv, heads // kv, dim)

    @jax.checkpoint
    def attend(index_and_rows: tuple[Array, Array]) -> Array:
        index, rows = index_and_rows
        logits = jnp.einsum("bqkgd,bskd->bkgqs", rows, key, preferred_element_type=jnp.float32) * dim**-0.5
        # Made once: the compiler likes to fuse the product anew into each pass of the softmax.
        logits = lax.optimization_barrier(logits)
        seen = index * block + jnp.arange(block)[:, None] >= jnp.arange(length)
        weights = jax.nn.softmax(jnp.where(seen, logits, -jnp.inf), axis=-1).astype(value.dtype)
        return jnp.einsum("bkgqs,bskd->bqkgd", weights, value)

    out = lax.map(attend, (jnp.arange(length // block), jnp.moveaxis(blocks, 1, 0)))
    return jnp.moveaxis(out, 0, 1).reshape(query.shape)


def attention(trunk: Trunk, x: Array, layer: Params) -> Array:
    """Self-attention of x [batch, sequence, embed] with its projections."""

    def project(name: str) -> Array:
        return jnp.einsum("bsd,dhk->bshk", x, layer[name].astype(x.dtype))

    query, key = rope(project("query"), trunk.rope_base), rope(project("key"), trunk.rope_base)
    mixed = causal_attention(query, key, project("value"), trunk.query_block)
    return jnp.einsum("bshk,hkd->bsd", mixed, layer["out"].astype(x.dtype))


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Mean cross-entropy in nats of logits [batch, sequence, vocab] against targets [batch, sequence]."""
    wide = logits.astype(jnp.float32)
    # A comparison fuses into the pass over the logits, and so does its gradient; a gather would not.
    hit = jnp.arange(wide.shape[-1]) == targets[..., None]
    target_logit = jnp.sum(jnp.where(hit, wide, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(wide, axis=-1) - target_logit)


def next_token_loss(
    trunk: Trunk, mesh: Mesh, feed_forward: FeedForward, params: dict[str, Params], batch: dict[str, Array]
) -> Array:
    """Cross-entropy of predicting batch["targets"], which is batch["inputs"] moved on by one token."""
    rows = NamedSharding(mesh, PartitionSpec(trunk.batch_axes))
    ends = params["ends"]

    def block(x: Array, layer: Params) -> tuple[Array, None]:
        x = x + checkpoint_name(attention(trunk, rms_norm(x, layer["attention_norm"]), layer), ATTENTION_OUT)
        x = x + feed_forward(rms_norm(x, layer["feed_forward_norm"]), layer)
        return lax.with_sharding_constraint(x, rows), None

    policy = jax.checkpoint_policies.save_only_these_names(ATTENTION_OUT, ROUTING)
    # Gathered whole, and in the narrow dtype: looking rows up in a sharded table would cost far more.
    table = lax.with_sharding_constraint(
        ends["embedding"].astype(trunk.dtype), NamedSharding(mesh, PartitionSpec())
    )
    x = lax.with_sharding_constraint(table[batch["inputs"]], rows)
    x, _ = lax.scan(jax.checkpoint(block, policy=policy), x, params["layers"])
    logits = rms_norm(x, ends["norm"]) @ ends["head"].astype(trunk.dtype)
    return cross_entropy(logits, batch["targets"])
