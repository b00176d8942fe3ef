"""Which implementation of an operation runs: the kernel, the kernel interpreted, or XLA's reference."""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from hloscope_kernels.chip import V6E, Chip, platform_name, tpu_chip

Implementation = Literal["auto", "pallas_tpu", "interpret", "xla"]
FLOATS = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The kernel was chosen.

    Attributes:
      chip: the TPU that it is traced for.
      interpret: run it in Pallas' interpreter, on whatever platform there is.
    """

    chip: Chip
    interpret: bool


def choose(implementation: Implementation, supports: Callable[[Chip], str | None]) -> Kernel | None:
    """The kernel to run, or None for XLA's reference.

    `auto` takes the kernel where `supports` finds nothing against it; `pallas_tpu` insists on it;
    `interpret` runs it without a TPU, slowly, which is for tests; `xla` takes the reference.

    Raises:
      ValueError: an unknown implementation, or a kernel that was insisted on cannot run; says why.
    """
    if implementation not in get_args(Implementation):
        known = ", ".join(get_args(Implementation))
        raise ValueError(f"implementation must be one of {known}, not {implementation!r}")
    if implementation == "xla":
        return None
    chip = V6E if implementation == "interpret" else tpu_chip()
    reason = no_tpu() if chip is None else supports(chip)
    if chip is not None and reason is None:
        return Kernel(chip=chip, interpret=implementation == "interpret")
    if implementation == "auto":
        return None
    raise ValueError(f"implementation={implementation!r} cannot run: {reason}")


def no_tpu() -> str:
    """Why no kernel for TPU can run in this trace."""
    return (
        f"the kernel is for TPU and this trace is for {platform_name()}; to compile ahead of time, trace "
        "inside jax.sharding.use_abstract_mesh with a mesh over the devices of the topology"
    )


def as_limit(limit: Any) -> jax.Array:
    """The limit as an int32 scalar: one that is larger than any int32 is behind all rows, as it is in its own type.

    Raises:
      ValueError: it is not one integer.
    """
    value = jnp.asarray(limit)
    if value.ndim != 0 or not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(f"limit must be one integer, not {value.dtype}{list(value.shape)}")
    most = np.iinfo(np.int32).max
    return (value if jnp.iinfo(value.dtype).max <= most else jnp.clip(value, 0, most)).astype(jnp.int32)


def check_matrix(name: str, value: jax.Array) -> None:
    """Raise ValueError unless `value` is a 2-D array of floating point numbers with at least one element."""
    if value.ndim != 2:
        raise ValueError(f"{name} must be 2-D [rows, columns], not {value.ndim}-D {list(value.shape)}")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"{name} must hold floating point numbers, not {value.dtype}")
    if 0 in value.shape:
        raise ValueError(f"{name} must not be empty, but its shape is {list(value.shape)}")


def check_alike(name: str, value: jax.Array, expected_shape: tuple[int, ...], dtype: Any) -> None:
    """Raise ValueError unless `value` has this shape and, where `dtype` is not None, this dtype."""
    if value.shape != expected_shape:
        raise ValueError(f"{name} must have shape {list(expected_shape)}, not {list(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise ValueError(f"{name} must have dtype {dtype}, not {value.dtype}")


def unsupported_dtype(dtype: Any) -> str | None:
    """The reason against a dtype, None for those that the kernels are made for."""
    if str(dtype) in FLOATS:
        return None
    return f"the kernel takes bfloat16 and float32, not {dtype}"
