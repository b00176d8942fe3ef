"""Work done before a loop that it does not depend on: what is found, that nothing changes, and what is left alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hloscope as hs
from hloscope.capture import lowering
from hloscope.plan import BeforeLoop, Plan
from hloscope.rewrite.early import do_early, early_work
from hloscope.rewrite.sizes import at_this_size
from hloscope.rewrite.verify import compare

LAYERS, WIDTH, VOCAB = 3, 8, 64


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return hs.Topology("cpu:8").mesh(fsdp=8)


def loss(params: Any, x: jax.Array) -> jax.Array:
    x, _ = lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, params["w"])
    return jnp.mean(jax.nn.logsumexp(x @ params["head"], axis=-1))


def training(mesh: Mesh, of: Any = loss, tokens: int = 64) -> hs.Step:
    def shaped(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    params = {
        "head": shaped((WIDTH, VOCAB), P("fsdp")),
        "w": shaped((LAYERS, WIDTH, WIDTH), P(None, "fsdp")),
    }

    def step(params: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(of)(params, x)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
        return new, value

    rows = P("fsdp") if tokens % 8 == 0 else P()
    return hs.Step(step, args=(params, shaped((tokens, WIDTH), rows)), donate_argnums=(0,))


def barriers(step: hs.Step, mesh: Mesh) -> int:
    equations = lowering.trace(step, mesh).jaxpr.eqns
    return sum(e.primitive.name == "optimization_barrier" for e in equations)


def test_the_gradient_of_the_output_is_made_before_the_backward_loop(mesh: Mesh) -> None:
    step = training(mesh)
    (work,) = early_work(step)
    assert work.key.startswith("dot_general/f32[64,8]/test_early.py:")
    assert "loop of 3 trips" in work.proof[0]
    assert "f32[64,64]" in work.proof[1]
    action = BeforeLoop(work=(work.key,))
    changed = do_early(step, action)
    assert barriers(changed, mesh) == barriers(step, mesh) + 1
    told = compare(step, changed, seed=1, reordered=False)
    assert all(leaf["bitwise"] for leaf in told["leaves"])
    applied = hs.apply(step, Plan(actions=(action,)))
    assert barriers(applied, mesh) == barriers(step, mesh) + 1


def test_at_another_size_it_is_the_same_work(mesh: Mesh) -> None:
    (large,) = early_work(training(mesh, tokens=128))
    small = training(mesh, tokens=64)
    plan = at_this_size(small, Plan(actions=(BeforeLoop(work=(large.key,)),)))
    assert barriers(hs.apply(small, plan), mesh) > barriers(small, mesh)
    larger = large.key.replace("f32[64,8]", "f32[512,8]")
    assert larger != large.key
    found_for_large = Plan(actions=(BeforeLoop(work=(larger,)),))
    with pytest.raises(hs.UserError, match="no longer fits"):
        hs.apply(small, found_for_large)
    assert barriers(hs.apply(small, found_for_large, any_size=True), mesh) > barriers(small, mesh)
    other = large.key.replace("test_early.py", "elsewhere.py")
    with pytest.raises(hs.UserError, match=r"at this size: it has no work like dot_general/.*elsewhere"):
        at_this_size(small, Plan(actions=(BeforeLoop(work=(other,)),)))


def test_what_gives_more_than_it_spares_is_left_alone(mesh: Mesh) -> None:
    assert early_work(training(mesh, tokens=4)) == []


def test_two_pieces_go_before_one_loop(mesh: Mesh) -> None:
    """The output's matrix is used before the layers too: both of its gradients are there before the backward loop."""

    def twice(params: Any, x: jax.Array) -> jax.Array:
        wide = jnp.tanh(x @ params["head"])
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])
        return jnp.mean(jnp.square(x @ params["head"]) * wide)

    step = training(mesh, twice)
    found = early_work(step)
    assert len(found) == 2
    assert len({id(each.scan) for each in found}) == 1
    assert found[0].scan.params["reverse"], "nothing waits for the forward loop"
    changed = do_early(step, BeforeLoop(work=tuple(each.key for each in found)))
    assert barriers(changed, mesh) == barriers(step, mesh) + 1
    assert all(leaf["bitwise"] for leaf in compare(step, changed, seed=1, reordered=False)["leaves"])


def test_what_the_loop_reads_or_a_result_needs_is_left_alone(mesh: Mesh) -> None:
    def read_again(params: Any, x: jax.Array) -> jax.Array:
        wide = jnp.tanh(x @ params["head"])
        x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])
        return jnp.mean(jnp.sum(x, axis=1, keepdims=True) * wide)

    def gradient_alone(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(x @ params["head"]) + jnp.sum(params["w"])

    assert all(each.scan.params["reverse"] for each in early_work(training(mesh, read_again)))
    assert early_work(training(mesh, gradient_alone)) == []


def test_a_plan_for_other_work_says_so(mesh: Mesh) -> None:
    action = BeforeLoop(work=("dot_general/f32[1,1]/gone.py:1",))
    with pytest.raises(
        hs.UserError, match=r"no longer fits: .*: no loop has dot_general/.* waiting behind it"
    ):
        hs.apply(training(mesh), Plan(actions=(action,)))


def test_early_work_that_needs_other_early_work_is_left_behind_the_loop(mesh: Mesh) -> None:
    # As Muon turns a gradient: contractions of a contraction.
    plain = training(mesh)

    def step(params: Any, x: jax.Array) -> Any:
        g = jax.grad(loss)(params, x)
        square = g["head"] @ g["head"].T
        g["head"] = 1.5 * g["head"] - 0.5 * square @ g["head"]
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, g)

    muon = hs.Step(step, args=plain.args, donate_argnums=(0,))
    found = early_work(muon)
    assert len(found) == 1
    changed = do_early(muon, BeforeLoop(work=(found[0].key,)))
    assert barriers(changed, mesh) == barriers(muon, mesh) + 1
    told = compare(muon, changed, seed=3, reordered=False)
    assert all(leaf["bitwise"] for leaf in told["leaves"])
