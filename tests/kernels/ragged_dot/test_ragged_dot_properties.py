"""Any sizes in any shape: the visits cover every row once, and the kernels agree with float64."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope_kernels.ragged_dot import pallas_gpu, pallas_tpu, xla
from hloscope_kernels.ragged_dot.bounds import row_bounds, visits
from hloscope_kernels.ragged_dot.tiles import Tiles

# Programs are compiled once per shape, so shapes are few and sizes are many.
SHAPES = ((1, 3, 2, 1), (40, 5, 7, 3), (48, 16, 8, 6), (33, 130, 9, 2))
TILES = Tiles(rows=16, inner=128, outer=128)


@st.composite
def bounded(draw: st.DrawFn, rows: int, groups: int) -> np.ndarray:
    """Bounds of `groups` groups within `rows` rows, often empty ones."""
    edges = st.lists(st.integers(0, rows), min_size=groups + 1, max_size=groups + 1)
    return np.array(sorted(draw(edges)), np.int32)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_row_of_a_group_is_visited_once(data: st.DataObject) -> None:
    tile_rows = 8
    rows, groups = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 7))
    edges = data.draw(bounded(rows, groups))
    steps = -(-rows // tile_rows) + groups - 1
    for visit_empty in (False, True):
        if not visit_empty and edges[0] == edges[-1]:
            continue
        seen = visits(jnp.asarray(edges), tile_rows=tile_rows, steps=steps, visit_empty=visit_empty)
        real = int(seen.real)
        assert 0 < real <= steps
        group, tile = np.asarray(seen.group), np.asarray(seen.tile)
        assert (np.diff(group) >= 0).all()
        assert (np.diff(tile) >= 0).all()
        assert (group[real:] == group[real - 1]).all()
        assert (tile[real:] == tile[real - 1]).all()
        assert 0 <= tile.min() <= tile.max() <= (rows - 1) // tile_rows
        covered = [
            (g, row)
            for g, t in zip(group[:real], tile[:real], strict=True)
            for row in range(t * tile_rows, (t + 1) * tile_rows)
            if edges[g] <= row < edges[g + 1]
        ]
        assert covered == [(g, row) for g in range(groups) for row in range(edges[g], edges[g + 1])]
        if visit_empty:
            assert set(group[:real]) == set(range(groups))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_bounds_are_those_of_the_held_groups(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    held = data.draw(st.integers(1, len(sizes)))
    offset = data.draw(st.integers(0, len(sizes) - held))
    rows = sum(sizes) + data.draw(st.integers(0, 5))
    expected = np.cumsum([0, *sizes])[offset : offset + held + 1]
    for first in (offset, jnp.array(offset), np.array([offset])):
        got = row_bounds(jnp.array(sizes), first, local_groups=held, rows=max(rows, 1))
        np.testing.assert_array_equal(got, expected)


@cache
def programs(way: str) -> tuple[Any, Any, Any]:
    how: dict[str, Any] = {"out_dtype": jnp.float32, "precision": "highest"}
    module = {"xla": xla, "pallas_tpu": pallas_tpu, "pallas_gpu": pallas_gpu}[way]
    if way != "xla":
        how["interpret"] = True
    if way == "pallas_tpu":
        how["tiles"] = TILES
    return (
        jax.jit(partial(module.dot, transposed=False, **how)),
        jax.jit(partial(module.dot, transposed=True, **how)),
        jax.jit(partial(module.contraction, **how)),
    )


@pytest.mark.parametrize("way", ["xla", "pallas_tpu", "pallas_gpu"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_products_of_any_groups(way: str, data: st.DataObject) -> None:
    m, k, n, groups = data.draw(st.sampled_from(SHAPES))
    bounds = data.draw(bounded(m, groups))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    lhs, grad = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(m, n)).astype(np.float32)
    rhs = rng.normal(size=(groups, k, n)).astype(np.float32)
    lhs[: bounds[0]] = grad[: bounds[0]] = np.nan
    lhs[bounds[-1] :] = grad[bounds[-1] :] = np.nan
    out, d_lhs, d_rhs = np.zeros((m, n)), np.zeros((m, k)), np.zeros((groups, k, n))
    for g, (start, end) in enumerate(pairwise(bounds)):
        out[start:end] = lhs[start:end].astype(np.float64) @ rhs[g]
        d_lhs[start:end] = grad[start:end].astype(np.float64) @ rhs[g].T
        d_rhs[g] = lhs[start:end].astype(np.float64).T @ grad[start:end]
    dot, transposed, contraction = programs(way)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-4)
    close(dot(lhs, rhs, bounds), out)
    close(transposed(grad, rhs, bounds), d_lhs)
    close(contraction(lhs, grad, bounds), d_rhs)
