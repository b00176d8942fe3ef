"""What a caller is told: early, in one line, with the reason."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hloscope_kernels.ragged_dot import ragged_dot, tokamax

LHS, RHS = jnp.ones((8, 4)), jnp.ones((2, 4, 3))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lhs": jnp.ones(4)}, "lhs must be [m, k] and rhs [g, k, n], got [4] and [2, 4, 3]"),
        ({"rhs": jnp.ones((2, 5, 3))}, "lhs must be [m, k] and rhs [g, k, n], got [8, 4] and [2, 5, 3]"),
        ({"rhs": []}, "rhs is an empty sequence"),
        (
            {"rhs": [jnp.ones((4, 3)), jnp.ones((4, 2))]},
            "rhs[0] is float32[4, 3], rhs[1] is float32[4, 2]",
        ),
        (
            {"rhs": [jnp.ones((4, 3)), jnp.ones((4, 3), jnp.bfloat16)]},
            "rhs[0] is float32[4, 3], rhs[1] is bfloat16[4, 3]",
        ),
        ({"group_sizes": [[1], [2]]}, "group_sizes must be [g], got [2, 1]"),
        ({"group_sizes": [1.0, 2.0]}, "group_sizes must be integers, got float64"),
        ({"group_sizes": [5, -1]}, "group_sizes has a negative size: -1"),
        ({"group_sizes": [5, 4]}, "group_sizes add up to 9, lhs has only 8 rows"),
        ({"group_sizes": [1, 2, 3]}, "3 group sizes for 2 groups of rhs; give group_offset"),
        (
            {"group_sizes": [1, 2, 3], "group_offset": 2},
            "group_offset 2 with 2 groups of rhs does not lie within the 3 groups",
        ),
        ({"group_sizes": [1, 2, 3], "group_offset": np.array(-1)}, "group_offset -1 with 2 groups"),
        ({"group_offset": 0.0}, "group_offset must be integers, got float64"),
        ({"group_offset": jnp.array([0, 1])}, "group_offset must be one integer, got [2]"),
        ({"implementation": "triton"}, "implementation 'triton' is none of auto, xla, pallas_tpu"),
        (
            {"implementation": "pallas_tpu"},
            "'pallas_tpu' cannot run here: it needs a TPU and this trace is for 'cpu'",
        ),
        ({"implementation": "pallas_gpu"}, "'pallas_gpu' cannot run here: it needs an NVIDIA GPU"),
        (
            {"implementation": "pallas_tpu", "interpret": True, "lhs": jnp.ones((8, 4), jnp.float16)},
            "it computes bfloat16, float32, not float16",
        ),
        (
            {"implementation": "pallas_gpu", "interpret": True, "lhs": jnp.ones((8, 4), jnp.int8)},
            "it computes bfloat16, float16, float32, not int8",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_message(changed: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"lhs": LHS, "rhs": RHS, "group_sizes": [3, 2]} | changed
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        ragged_dot(**call)
    assert "\n" not in str(raised.value)


def test_tokamax_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokamax, "installed", lambda: False)
    with pytest.raises(
        ValueError, match=r"'tokamax' cannot run here: Tokamax is not installed \(pip install"
    ):
        ragged_dot(LHS, RHS, [3, 2], implementation="tokamax")


def test_tokamax_gets_the_same_products_and_its_dead_rows_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jax import lax

    seen: list[tuple[Any, ...]] = []

    def general(lhs: Any, rhs: Any, sizes: Any, **how: Any) -> Any:
        seen.append((lhs.shape, rhs.shape, sizes.shape))
        return lax.ragged_dot_general(lhs, rhs, sizes, **how)

    monkeypatch.setattr(tokamax, "installed", lambda: True)
    monkeypatch.setattr(tokamax, "_general", lambda: general)
    lhs = LHS.at[5:].set(jnp.nan)
    out = ragged_dot(lhs, RHS, [3, 2], implementation="tokamax")
    assert seen == [((8, 4), (2, 4, 3), (2,))]
    np.testing.assert_array_equal(out, ragged_dot(lhs, RHS, [3, 2], implementation="xla"))
