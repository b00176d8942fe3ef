"""Comparing a step with its rewritten form, and what a broken rewrite looks like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.capture.launch import ask_step
from hloscope.plan import MoveAxis, Plan, to_fields
from hloscope.rewrite.inputs import sample
from hloscope.rewrite.verify import EXACT, REORDERED, REORDERED_NARROW, ROUNDED, compare, compare_leaf


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return hs.Topology("cpu:8").mesh(fsdp=8)


def training(mesh: Mesh, gradient_of: Callable[[jax.Array, jax.Array], jax.Array], **more: Any) -> hs.Step:
    """w [8, 16] and a batch to their loss and the next w."""

    def step(w: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(gradient_of)(w, batch["x"])
        return w - 0.5 * gradient, value

    sharding = NamedSharding(mesh, P("fsdp"))
    w = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=sharding)
    batch = {
        "x": jax.ShapeDtypeStruct((32, 8), jnp.float32, sharding=sharding),
        "ids": jax.ShapeDtypeStruct((32,), jnp.int32, sharding=sharding),
    }
    return hs.Step(step, args=(w, batch), donate_argnums=(0,), **more)


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x @ w))


def drops_a_row(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square((x @ w)[:-1]))


def changes_no_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(loss(w, x)) + loss(w.at[3, 5].multiply(2), x) * 0


def test_a_step_is_bitwise_its_own(mesh: Mesh) -> None:
    told = compare(training(mesh, loss), training(mesh, loss), seed=1, reordered=False)
    assert told["ok"]
    assert [(leaf["name"], leaf["bitwise"]) for leaf in told["leaves"]] == [("[0]", True), ("[1]", True)]
    assert {leaf["allowed_roundings"] for leaf in told["leaves"]} == {EXACT}


def test_one_rounding_in_float32_is_too_much_where_nothing_is_reordered(mesh: Mesh) -> None:
    def other_order(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(x[:, 4:] @ w[4:] + x[:, :4] @ w[:4]))

    told = {
        reordered: compare(training(mesh, loss), training(mesh, other_order), seed=1, reordered=reordered)
        for reordered in (False, True)
    }
    assert not told[False]["ok"]
    assert told[True]["ok"]


@pytest.mark.parametrize("broken", [drops_a_row, changes_no_loss])
@pytest.mark.parametrize("reordered", [False, True])
def test_a_broken_rewrite_is_caught(broken: Any, reordered: bool, mesh: Mesh) -> None:
    told = compare(training(mesh, loss), training(mesh, broken), seed=1, reordered=reordered)
    assert not told["ok"]


def test_a_gradient_alone_can_be_wrong(mesh: Mesh) -> None:
    told = compare(training(mesh, loss), training(mesh, changes_no_loss), seed=1, reordered=False)
    assert [leaf["ok"] for leaf in told["leaves"]] == [False, True]


def test_rows_of_garbage_that_are_read_show(mesh: Mesh) -> None:
    def reads_garbage(w: jax.Array, x: jax.Array) -> jax.Array:
        unwritten = jnp.where(jnp.arange(32)[:, None] < 16, x @ w, jnp.nan)
        # A mask that multiplies does not keep NaN out.
        return jnp.sum(jnp.square(unwritten * (jnp.arange(32)[:, None] < 16)))

    def half(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square((x @ w)[:16]))

    told = compare(training(mesh, half), training(mesh, reads_garbage), seed=1, reordered=True)
    assert told["leaves"][1]["roundings"] is None
    assert not told["ok"]


def test_other_trees_and_steps_without_numbers_are_told(mesh: Mesh) -> None:
    one = training(mesh, loss)
    other = hs.Step(lambda w, batch: w, args=one.args)
    with pytest.raises(hs.UserError, match="returns another tree"):
        compare(one, other, seed=1, reordered=False)
    infinite = training(mesh, lambda w, x: jnp.sum(jnp.log(w)))
    with pytest.raises(
        hs.UserError, match=r"are NaN or infinite on these values: give hs\.Step\(\.\.\., sample"
    ):
        compare(infinite, infinite, seed=1, reordered=False)


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [
        (np.float32, ROUNDED),
        (np.float32, REORDERED),
        (ml_dtypes.bfloat16, ROUNDED),
        (ml_dtypes.bfloat16, REORDERED_NARROW),
    ],
)
def test_what_is_allowed_is_held_to(dtype: Any, allowed: float) -> None:
    old = np.linspace(-1, 1, 64).astype(dtype)
    unit = float(jnp.finfo(dtype).eps)

    def moved_by(roundings: float) -> dict[str, Any]:
        new = old.copy()
        new[32] = float(old[32]) + roundings * unit
        return compare_leaf("x", old, new, allowed=allowed)

    assert compare_leaf("x", old, old.copy(), allowed=allowed)["ok"]
    assert moved_by(0.9 * allowed)["ok"]
    assert not moved_by(1.5 * allowed + 1)["ok"]
    assert moved_by(1.5 * allowed + 1)["roundings"] == pytest.approx(1.5 * allowed + 1, rel=0.1)


def test_an_update_that_was_left_out_is_wrong_however_small() -> None:
    given = np.linspace(-1, 1, 64, dtype=np.float32)
    old = given + np.float32(1e-6)
    new = old + np.float32(1e-7)
    assert compare_leaf("x", old, new, allowed=REORDERED, given=[given])["ok"]
    assert compare_leaf("x", old, given, allowed=REORDERED)["roundings"] < REORDERED
    assert not compare_leaf("x", old, given, allowed=REORDERED, given=[given])["ok"]
    assert compare_leaf("x", given, given.copy(), allowed=EXACT, given=[given])["ok"], "as the original's"


def test_narrow_types_are_allowed_few_roundings_where_devices_add_up_otherwise() -> None:
    assert REORDERED_NARROW * float(jnp.finfo(jnp.bfloat16).eps) < 0.05


def test_the_sign_of_zero_is_a_bit() -> None:
    zero, minus = np.zeros(4, np.float32), -np.zeros(4, np.float32)
    told = compare_leaf("x", zero, minus, allowed=EXACT)
    assert (told["ok"], told["bitwise"], told["roundings"]) == (True, False, 0.0)


def test_integers_and_kinds_must_be_the_same() -> None:
    ids = np.arange(4, dtype=np.int32)
    assert compare_leaf("x", ids, ids.copy(), allowed=REORDERED)["ok"]
    assert not compare_leaf("x", ids, ids + 1, allowed=REORDERED)["ok"]
    assert not compare_leaf("x", ids, ids.astype(np.int16), allowed=REORDERED)["ok"]


def test_values_are_the_same_for_the_same_seed_and_in_range(mesh: Mesh) -> None:
    step = training(mesh, loss)
    (one, batch), _ = sample(step, 7)
    assert np.array_equal(one, sample(step, 7)[0][0])
    assert not np.array_equal(one, sample(step, 8)[0][0])
    assert set(batch["ids"].tolist()) <= {0, 1}


def test_a_step_may_bring_its_values_and_they_must_fit(mesh: Mesh) -> None:
    ids = np.full(32, 5, np.int32)
    good = training(
        mesh,
        loss,
        sample=lambda seed: (np.ones((8, 16), np.float32), {"x": np.ones((32, 8), np.float32), "ids": ids}),
    )
    assert sample(good, 0)[0][1]["ids"].tolist() == ids.tolist()
    other_tree = training(mesh, loss, sample=lambda seed: (np.ones((8, 16), np.float32),))
    with pytest.raises(hs.UserError, match="their trees differ"):
        sample(other_tree, 0)
    other_type = training(mesh, loss, sample=lambda seed: (np.ones((8, 16)), {"x": ids, "ids": ids}))
    with pytest.raises(hs.UserError, match=r"gives float64\[8, 16\], where Step.args has float32\[8, 16\]"):
        sample(other_type, 0)


def test_a_worker_verifies_a_plan_at_the_size_for_the_host(tmp_path: Path) -> None:
    path = tmp_path / "steps.py"
    path.write_text(
        dedent("""
        import jax, jax.numpy as jnp
        from jax.sharding import NamedSharding, PartitionSpec as P
        import hloscope as hs

        @hs.step(topology="v5e:2x4")
        def train(topology):
            mesh, size = topology.mesh(fsdp=8), 512 if topology.platform == "tpu" else 16
            def shaped(*shape):
                return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P("fsdp")))
            def step(w, x):
                return w - jax.grad(lambda w: jnp.sum(jnp.square(x @ w)))(w)
            return hs.Step(step, args=(shaped(size, size), shaped(size, size)))
        """)
    )
    move = MoveAxis(parameter="w", shape=(512, 512), axes=("fsdp",), source=0, target=1)
    options = {"plan": to_fields(Plan(actions=(move,))), "seed": 3}
    told = ask_step(str(path), "verify", topology="cpu:8", options=options)
    assert (told["ok"], told["topology"], told["seed"]) == (True, "cpu:8", 3)
    (leaf,) = told["leaves"]
    assert (leaf["shape"], leaf["allowed_roundings"]) == ([16, 16], REORDERED)


def test_keys_of_random_numbers_go_in_and_come_out(mesh: Mesh) -> None:
    def step(w: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, own = jax.random.split(key)
        return w + jax.random.normal(own, w.shape), key

    whole = NamedSharding(mesh, P())
    args = (
        jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=whole),
        jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=whole),
    )
    one = hs.Step(step, args=args, sample=lambda seed: (jnp.ones((8, 8)), jax.random.key(seed)))
    told = compare(one, one, seed=3, reordered=False)
    assert told["ok"]
    assert all(leaf["bitwise"] for leaf in told["leaves"])
