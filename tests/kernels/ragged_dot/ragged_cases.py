"""Grouped matmuls that any implementation must get right, with what they should give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hloscope_kernels.ragged_dot import ragged_dot
from hloscope_kernels.ragged_dot.reference import contraction_reference, ragged_dot_reference

# Pallas kernels run interpreted: nothing here needs a TPU or a GPU.
WAYS: dict[str, dict[str, Any]] = {
    "xla": {"implementation": "xla"},
    "pallas_tpu": {"implementation": "pallas_tpu", "interpret": True},
    "pallas_gpu": {"implementation": "pallas_gpu", "interpret": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: `[m, k]` times `groups` weights of `[k, n]`, with the sizes of all groups."""

    name: str
    sizes: tuple[int, ...]
    m: int = 300
    k: int = 24
    n: int = 20
    offset: int | None = None
    groups: int | None = None

    @property
    def held(self) -> int:
        """Groups that rhs holds."""
        return len(self.sizes) if self.groups is None else self.groups

    @property
    def live(self) -> slice:
        """Rows of groups that rhs holds."""
        first = self.offset or 0
        return slice(sum(self.sizes[:first]), sum(self.sizes[: first + self.held]))


# 300 rows are two tiles of 256 rows, or three of 128, the last of them partial.
CASES = (
    Case(name="aligned groups fill the rows", m=512, sizes=(256, 256)),
    Case(name="groups end inside tiles", sizes=(5, 123, 101, 71)),
    Case(name="many groups share a tile", sizes=(1, 2, 3, 4, 5, 6, 7, 8)),
    Case(name="empty groups", sizes=(0, 130, 0, 0, 90, 0)),
    Case(name="all groups empty", sizes=(0, 0, 0)),
    Case(name="one group", sizes=(300,)),
    Case(name="one short group", sizes=(7,)),
    Case(name="sizes do not fill the rows", sizes=(40, 3, 60)),
    Case(name="offset", sizes=(40, 100, 60, 50), offset=1, groups=2),
    Case(name="offset into a later tile", sizes=(270, 10, 5, 15), offset=2, groups=1),
    Case(name="offset, held groups empty", sizes=(40, 0, 0, 50), offset=1, groups=2),
    Case(name="last groups", sizes=(40, 100, 60, 50), offset=2, groups=2),
    Case(name="one row", m=1, sizes=(0, 1)),
    Case(name="widths beyond a block", m=150, k=200, n=90, sizes=(90, 31)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Operands, the gradient of the result, and what `ragged_dot` and its gradients should be in float64."""

    lhs: np.ndarray
    rhs: np.ndarray
    grad: np.ndarray
    out: np.ndarray
    d_lhs: np.ndarray
    d_rhs: np.ndarray


@cache
def data(case: Case, dtype: Any = jnp.float32) -> Data:
    """Random operands whose dead rows are NaN, in lhs and in the gradient of the result."""
    rng = np.random.default_rng(len(case.name))
    lhs = rng.normal(size=(case.m, case.k)).astype(dtype)
    rhs = rng.normal(size=(case.held, case.k, case.n)).astype(dtype)
    grad = rng.normal(size=(case.m, case.n)).astype(dtype)
    dead = np.ones(case.m, bool)
    dead[case.live] = False
    lhs[dead] = grad[dead] = np.nan
    sizes, offset = list(case.sizes), case.offset or 0
    return Data(
        lhs=lhs,
        rhs=rhs,
        grad=grad,
        out=ragged_dot_reference(lhs, rhs, sizes, offset),
        d_lhs=ragged_dot_reference(grad, rhs.swapaxes(1, 2), sizes, offset),
        d_rhs=contraction_reference(lhs, grad, sizes, offset, case.held),
    )


@cache
def jitted(way: str, offset: bool) -> Any:
    """The result and both gradients in one compiled program, per way of computing them."""

    def both(lhs: Any, rhs: Any, sizes: Any, first: Any, grad: Any) -> Any:
        call = partial(
            ragged_dot,
            group_sizes=sizes,
            group_offset=first if offset else None,
            precision="highest",
            preferred_element_type=jnp.promote_types(lhs.dtype, rhs.dtype),
            **WAYS[way],
        )
        out, pull = jax.vjp(call, lhs, rhs)
        return out, *pull(grad)

    return jax.jit(both)


def close(actual: Any, expected: np.ndarray, reduced: int) -> None:
    """Compare with float64, at a tolerance for the dtype and the length of the sums."""
    got = np.asarray(actual)
    unit = float(jnp.finfo(got.dtype).eps)
    tolerance = 2 * unit + 4 * float(jnp.finfo(jnp.float32).eps) * np.sqrt(reduced)
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=tolerance, atol=tolerance * max(1.0, np.sqrt(reduced))
    )
