"""The ring-of-experts layer against a plain one, on eight host devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import _moe
import jax
import jax.numpy as jnp
import moe_reference
import numpy as np
import pytest
from _moe import Experts, moe_layer
from jax import Array
from jax.sharding import Mesh

EXPERTS = Experts(count=8, top_k=2, embed=16, mlp=24, ragged_buffer_factor=2.0)
BATCH, SEQUENCE = 8, 12
GROUP = BATCH * SEQUENCE // 2  # tokens of one expert group: the mesh has two
NAMES = ("x", "router", "wi", "wo")

# What each expert's logit is moved by, and the buffer factor. Two experts live on each device of a group.
EVEN = ([0.0] * 8, 2.0)
NO_ROOM_TO_SPARE = ([0.0] * 8, 0.75)
EMPTY_GROUPS = ([30.0, -30.0, -30.0, 30.0, 0.0, 0.0, 0.0, 0.0], 4.0)
EMPTY_DEVICES_AND_OVERFLOW = ([60.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 2.5)
ROUTINGS = {
    "even": EVEN,
    "no_room": NO_ROOM_TO_SPARE,
    "empty_groups": EMPTY_GROUPS,
    "overflow": EMPTY_DEVICES_AND_OVERFLOW,
}

Arrays = dict[str, Array]


def draw(bias: list[float]) -> tuple[Arrays, Array]:
    """Inputs whose first feature is one, so that the router's first row moves the logits; a gradient."""
    keys = jax.random.split(jax.random.key(3), 5)
    x = jax.random.normal(keys[0], (BATCH, SEQUENCE, EXPERTS.embed)).at[..., 0].set(1.0)
    arrays = {
        "x": x,
        "router": jax.random.normal(keys[1], (EXPERTS.embed, 8)).at[0].set(jnp.array(bias)),
        "wi": jax.random.normal(keys[2], (8, EXPERTS.embed, 2 * EXPERTS.mlp)) / 4,
        "wo": jax.random.normal(keys[3], (8, EXPERTS.mlp, EXPERTS.embed)) / 4,
    }
    return arrays, jax.random.normal(keys[4], x.shape)


def run(experts: Experts, mesh: Mesh, arrays: Arrays, gradient: Array) -> tuple[Array, Arrays]:
    """The layer's output and the gradients of all its inputs."""
    return outcome(lambda a: moe_layer(experts, mesh, a["x"], a), arrays, gradient)


def outcome(layer: Callable[[Arrays], Array], arrays: Arrays, gradient: Array) -> tuple[Array, Arrays]:
    @jax.jit
    def both(arrays: Arrays) -> tuple[Array, Arrays]:
        out, backward = jax.vjp(layer, arrays)
        return out, backward(gradient)[0]

    return both(arrays)


def expected(experts: Experts, arrays: Arrays, gradient: Array) -> tuple[Array, Arrays, np.ndarray]:
    flat = arrays["x"].reshape(-1, experts.embed)
    choices, _ = moe_reference.route(flat, arrays["router"], experts.top_k)
    keep = moe_reference.kept(np.asarray(choices), 2, 4, experts.count, experts.buffer_rows(GROUP, 4))

    def layer(a: Arrays) -> Array:
        tokens = a["x"].reshape(-1, experts.embed)
        return moe_reference.layer(tokens, a["router"], a["wi"], a["wo"], experts.top_k, keep).reshape(
            a["x"].shape
        )

    return *outcome(layer, arrays, gradient), keep


def close(actual: Array, reference: Array) -> None:
    assert np.isfinite(actual).all()
    # f32 sums in another order, of some dozens of terms.
    np.testing.assert_allclose(actual, reference, rtol=2e-5, atol=2e-5 * np.abs(reference).max())


@pytest.mark.parametrize("routing", ROUTINGS)
def test_layer_and_gradients_equal_the_plain_ones(routing: str, mesh: Mesh) -> None:
    bias, factor = ROUTINGS[routing]
    experts = replace(EXPERTS, ragged_buffer_factor=factor)
    arrays, gradient = draw(bias)
    out, gradients = run(experts, mesh, arrays, gradient)
    out_reference, reference, keep = expected(experts, arrays, gradient)
    assert keep.all() == (routing in ("even", "empty_groups"))
    close(out, out_reference)
    for name in NAMES:
        close(gradients[name], reference[name])


def test_overflow_drops_the_last_tokens_of_the_last_experts(mesh: Mesh) -> None:
    bias, factor = EMPTY_DEVICES_AND_OVERFLOW
    experts = replace(EXPERTS, ragged_buffer_factor=factor)
    _, _, keep = expected(experts, *draw(bias))
    # 48 tokens all choose experts 0 and 1 of one device, whose buffer has 60 rows.
    assert experts.buffer_rows(GROUP, 4) == 60
    assert keep[:, 0].all()
    assert [int(group[:, 1].sum()) for group in np.split(keep, 2)] == [12, 12]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_dead_rows_change_no_bit(routing: str, mesh: Mesh) -> None:
    bias, factor = ROUTINGS[routing]
    experts = replace(EXPERTS, ragged_buffer_factor=factor)
    arrays, gradient = draw(bias)
    harmless = run(replace(experts, dead_rows=7.0), mesh, arrays, gradient)
    poisoned = run(replace(experts, dead_rows=float("nan")), mesh, arrays, gradient)
    for expected_leaf, leaf in zip(jax.tree.leaves(harmless), jax.tree.leaves(poisoned), strict=True):
        assert np.isfinite(leaf).all()
        np.testing.assert_array_equal(
            np.asarray(leaf).view(np.uint32), np.asarray(expected_leaf).view(np.uint32)
        )


def careless_take(source: Array, index: Array, size: int, unique: bool = False) -> Array:
    return source.at[index].get(mode="clip")


def careless_put(rows: Array, index: Array, size: int, unique: bool = False) -> Array:
    alive = (index < size).reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.zeros((size, *rows.shape[1:]), rows.dtype).at[index].add(rows * alive, mode="clip")


@pytest.mark.parametrize(("name", "careless"), [("take_rows", careless_take), ("put_rows", careless_put)])
def test_poison_shows_a_careless_consumer(
    name: str, careless: Callable[..., Array], mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_moe, name, careless)
    arrays, gradient = draw(EVEN[0])
    leaves = jax.tree.leaves(run(replace(EXPERTS, dead_rows=float("nan")), mesh, arrays, gradient))
    assert any(np.isnan(leaf).any() for leaf in leaves)


@pytest.mark.parametrize("local", [2, 8])
def test_pack_orders_slots_by_expert(local: int) -> None:
    choices = jnp.array([[3, 1], [2, 3], [0, 2], [3, 2]])
    rows = _moe.pack(choices, jnp.int32(2), local, 9)
    assert rows.group_sizes.tolist() == [3, 3, *[0] * (local - 2)]
    assert int(rows.limit) == 6
    assert rows.token.tolist() == [1, 2, 3, 0, 1, 3, 4, 4, 4]
    assert rows.slot.tolist() == [2, 5, 7, 0, 3, 6, 14, 15, 16]


def test_a_buffer_of_half_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9\.25 rows: change ragged_buffer_factor"):
        replace(EXPERTS, ragged_buffer_factor=1.15625).buffer_rows(16, 4)
