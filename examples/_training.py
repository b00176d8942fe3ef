"""What makes a loss a training step: f32 master parameters, Adam, and arguments laid out over a mesh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from _transformer import Parameter, Parameters, Trunk
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree = Any  # A pytree of arrays, or of their shapes.
Loss = Callable[[Tree, dict[str, Array]], Array]

LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.95, 1e-8


class State(NamedTuple):
    """All that a step reads and replaces; donate it. The moments are shaped like the parameters."""

    params: Tree
    mean: Tree
    variance: Tree
    steps: Tree


def adam(state: State, gradients: Tree) -> State:
    """One Adam update, without weight decay."""
    steps = state.steps + 1
    correct1, correct2 = 1 - BETA1**steps, 1 - BETA2**steps

    def update(p: Array, m: Array, v: Array, g: Array) -> tuple[Array, Array, Array]:
        mean = BETA1 * m + (1 - BETA1) * g
        variance = BETA2 * v + (1 - BETA2) * jnp.square(g)
        change = (mean / correct1) / (jnp.sqrt(variance / correct2) + EPSILON)
        return p - LEARNING_RATE * change, mean, variance

    updated = jax.tree.map(update, state.params, state.mean, state.variance, gradients)
    outer, inner = jax.tree.structure(state.params), jax.tree.structure((0, 0, 0))
    params, mean, variance = jax.tree.transpose(outer, inner, updated)
    return State(params, mean, variance, steps)


def training_step(loss: Loss) -> Callable[[State, dict[str, Array]], tuple[State, Array]]:
    """(state, batch) -> (next state, loss)."""

    def step(state: State, batch: dict[str, Array]) -> tuple[State, Array]:
        value, gradients = jax.value_and_grad(loss)(state.params, batch)
        return adam(state, gradients), value

    return step


def map_parameters(make: Callable[[Parameter], Any], parameters: Parameters) -> Tree:
    """The parameter tree with `make` of each `Parameter` as its leaves."""
    return jax.tree.map(make, parameters, is_leaf=lambda leaf: isinstance(leaf, Parameter))


def abstract_state(parameters: Parameters, mesh: Mesh) -> State:
    """The shapes and shardings of a state, all f32 but the step count, without its values."""

    def like(p: Parameter) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(p.shape, jnp.float32, sharding=NamedSharding(mesh, p.spec))

    params = map_parameters(like, parameters)
    steps = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return State(params, params, params, steps)


def shardings(tree: Tree) -> Tree:
    """The sharding of every leaf: what a donated argument's result must keep to take over its memory."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def abstract_batch(trunk: Trunk, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Token ids of one batch, i32 [batch, sequence], sequences spread over the batch axes."""
    ids = jax.ShapeDtypeStruct(
        (trunk.batch, trunk.sequence),
        jnp.int32,
        sharding=NamedSharding(mesh, PartitionSpec(trunk.batch_axes)),
    )
    return {"inputs": ids, "targets": ids}


def initial_state(parameters: Parameters, mesh: Mesh, seed: int = 0) -> State:
    """A state to start training from, placed on the mesh."""
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(map_parameters(id, parameters)))))

    def draw(p: Parameter) -> Array:
        key = next(keys)
        if p.scale is None:
            return jnp.ones(p.shape, jnp.float32)
        return p.scale * jax.random.normal(key, p.shape, jnp.float32)

    params = map_parameters(draw, parameters)
    # Donated, so the two moments must not share their zeros.
    mean, variance = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    state = State(params, mean, variance, jnp.zeros((), jnp.int32))
    return jax.device_put(state, shardings(abstract_state(parameters, mesh)))


def sampler(parameters: Parameters, trunk: Trunk, mesh: Mesh) -> Callable[[int], tuple[State, Tree]]:
    """What makes values to run a step with from a seed: a state in the midst of training, and a batch."""

    def sample(seed: int) -> tuple[State, Tree]:
        state = initial_state(parameters, mesh, seed)
        keys = iter(jax.random.split(jax.random.key(seed + 1), len(jax.tree.leaves(state))))

        def drawn(p: Array) -> Array:
            return 1e-2 * jax.random.normal(next(keys), p.shape, p.dtype)

        # Far from zero, where a moment's last bit would decide the sign of a whole update.
        mean, deviation = jax.tree.map(drawn, state.params), jax.tree.map(drawn, state.params)
        variance = jax.tree.map(lambda d: 1e-4 + jnp.square(d), deviation)
        ids = jax.random.randint(next(keys), (trunk.batch, trunk.sequence + 1), 0, trunk.vocab, jnp.int32)
        return State(state.params, mean, variance, state.steps + 100), {
            "inputs": ids[:, :-1],
            "targets": ids[:, 1:],
        }

    return sample
