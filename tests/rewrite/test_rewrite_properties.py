"""Random row-wise programs: rewritten they give the same bits below the limit, with NaN behind it."""

# jax and jaxprs have no types worth checking here.

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import ragged_programs as programs
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from ragged_programs import COLUMNS, GROUPS, ROWS

Matrix = jax.Array
UNARY: dict[str, Callable[[Matrix], Matrix]] = {
    "neg": lambda x: -x,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "square": jnp.square,
    "halves": lambda x: jnp.concatenate([x[:, COLUMNS // 2 :], x[:, : COLUMNS // 2]], axis=1),
    "row_max": lambda x: x - jnp.max(x, axis=1, keepdims=True),
    "relu": lambda x: jnp.maximum(x, 0.0),
}
BINARY: dict[str, Callable[[Matrix, Matrix], Matrix]] = {
    "add": jnp.add,
    "mul": jnp.multiply,
    "sub": jnp.subtract,
    "select": lambda x, y: jnp.where(x > 0, y, x),
}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 5)),
        st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 5), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=6,
)
# At most as many rows as the buffer has; empty groups and an empty buffer are among them.
SIZES = st.lists(st.integers(0, ROWS // GROUPS), min_size=GROUPS, max_size=GROUPS)


def row_program(steps: list[tuple]) -> Callable[..., tuple[Matrix, Matrix]]:
    def program(x: Matrix, y: Matrix, scale: Matrix, w: Matrix, sizes: Matrix) -> tuple[Matrix, Matrix]:
        values = [x, y, x * scale[:, None]]
        for name, *where in steps:
            given_values = [values[position % len(values)] for position in where]
            values.append((UNARY.get(name) or BINARY[name])(*given_values))
        valid = (jnp.arange(ROWS) < jnp.sum(sizes))[:, None]
        first = lax.ragged_dot(values[-1], w, sizes)
        return first, jnp.sum(jnp.where(valid, values[-1], 0.0), axis=0)

    return program


@settings(max_examples=8, deadline=None, derandomize=True)
@given(steps=STEPS, sizes=SIZES)
def test_random_programs(steps: list[tuple], sizes: list[int]):
    limit = sum(sizes)
    dead = np.arange(ROWS) >= limit
    x, y = (jnp.where(dead[:, None], jnp.nan, programs.buffer(seed)) for seed in (1, 2))
    scale = jnp.where(dead, jnp.nan, jnp.linspace(-2.0, 2.0, ROWS))
    args = (x, y, scale, programs.weights(), jnp.asarray(sizes, jnp.int32))
    program = row_program(steps)
    found = programs.analysis(program, *args)
    if any(len(step) == 3 or step[0] != "halves" for step in steps[-1:]):
        assert found.replaceable, found.explain()
    if found.replaceable:
        assert programs.same(programs.poisoned(program, *args), programs.plain(program, *args))
