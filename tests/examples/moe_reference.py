"""The mixture-of-experts layer token by token: every expert sees every token, nothing is sorted or packed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def route(x: Array, router: Array, top_k: int) -> tuple[Array, Array]:
    """Experts and weights of each token of x [tokens, embed], both [tokens, top_k]."""
    weights, choices = jax.lax.top_k(jax.nn.softmax(x @ router), top_k)
    return choices, weights / weights.sum(-1, keepdims=True)


def kept(choices: np.ndarray, groups: int, expert_axis: int, experts: int, buffer_rows: int) -> np.ndarray:
    """Which slots of choices [tokens, top_k] fit into the buffers of their devices, filled slot by slot."""
    fits = np.zeros(choices.shape, bool)
    local = experts // expert_axis
    for group in np.split(np.arange(len(choices)), groups):
        room = np.full(expert_axis, buffer_rows)
        for expert in range(experts):
            for token, slot in np.argwhere(choices[group] == expert):
                fits[group[token], slot] = room[expert // local] > 0
                room[expert // local] -= 1
    return fits


def layer(x: Array, router: Array, wi: Array, wo: Array, top_k: int, keep: np.ndarray) -> Array:
    """x [tokens, embed] through its experts; slots that are not kept give nothing."""
    choices, weights = route(x, router, top_k)
    gate, up = jnp.split(jnp.einsum("td,edf->tef", x, wi), 2, axis=-1)
    each = jnp.einsum("tef,efd->ted", jax.nn.silu(gate) * up, wo)
    chosen = jnp.take_along_axis(each, choices[..., None], axis=1)
    return jnp.sum(chosen * (weights * keep)[..., None], axis=1)
