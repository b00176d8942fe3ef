"""Any row-wise function over the valid rows of ragged buffers, as one kernel.

`valid_rows(fn, limit)` is `fn`, but visits only the blocks of rows below `limit`:

    activated = valid_rows(lambda x: jax.nn.silu(x[:, :1024]) * x[:, 1024:], limit)(fused)

What `fn` may do: elementwise arithmetic, splits, slices, concatenations and paddings of columns, sums,
maxima and minima over the columns of a row, numbers per row against columns, arrays captured that are
the same for all rows. What mixes rows is refused, with the operation that does it.

Rows: as for the other kernels here. Only blocks that begin below `limit` are read and written; in the
last of them the rows from `limit` on become zero; **rows past it are not written**. Off a TPU, or where
the rows are too wide for its VMEM, the reference runs on all rows and puts zeros there.

Numerics: float32 inside where the function says bfloat16, in the order in which XLA computes, rounded
once on the way out. That is what XLA does inside one fusion that keeps float32; where XLA computes in
bfloat16 (newer compilers do on tpu7x) the kernel is the more accurate one. Sums over columns run per
lane first, then over the 128 lanes.

Gradients: differentiate first, then wrap the forward and the backward function each.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from hloscope_kernels.chip import Chip
from hloscope_kernels.choice import Implementation, as_limit, choose
from hloscope_kernels.valid_rows.config import Blocks, blocks_for
from hloscope_kernels.valid_rows.layout import is_vector
from hloscope_kernels.valid_rows.pallas_tpu import RowKernel, row_bytes, valid_rows_kernel, vector_count
from hloscope_kernels.valid_rows.program import Program, read_program
from hloscope_kernels.valid_rows.reference import valid_rows_reference
from hloscope_kernels.valid_rows.roles import NotRowWiseError, infer_roles

_DTYPES = ("bfloat16", "float32", "int32")


def valid_rows(
    fn: Callable[..., Any],
    limit: jax.typing.ArrayLike,
    *,
    donate: Mapping[int, int] | None = None,
    name: str = "valid_rows",
    implementation: Implementation = "auto",
) -> Callable[..., Any]:
    """`fn` over the rows below `limit`.

    Args:
      fn: a row-wise function of arrays [rows, columns] or [rows] (numbers per row), which returns a tree
        of such arrays; bfloat16, float32 or int32 for the kernel, which also reads one boolean per row.
      limit: rows [0, limit) are valid; an integer, clipped to [0, rows].
      donate: operand to result, by position: the result is written in the place of the operand, which
        must have its shape and dtype. Right where the operand dies here; otherwise XLA copies it first.
      name: the kernel's name in the module.
      implementation: see `choice.choose`.

    Returns:
      A function of the operands that returns what `fn` returns; see the module's docstring for rows from
      `limit` on.

    Raises (when called):
      NotRowWiseError: a ValueError that names the operation of `fn` that is not row-wise.
      ValueError: operands or `donate` do not fit, or the implementation asked for cannot run.
    """
    aliases = dict(donate or {})

    @wraps(fn)
    def over_valid_rows(*operands: jax.Array) -> Any:
        program, tree = read_program(fn, operands)
        rows = _rows(operands)
        roles = infer_roles(program, rows)
        _check_aliases(program, aliases)
        chosen = choose(implementation, partial(_reason, program, rows))
        if chosen is None:
            run = partial(valid_rows_reference, program)
        else:
            blocks = _blocks(program, rows, chosen.chip)
            assert blocks is not None  # Otherwise there was a reason against the kernel.
            run = partial(
                valid_rows_kernel,
                RowKernel(program=program, roles=roles, rows=rows, blocks=blocks),
                chip=chosen.chip,
                aliases=aliases,
                name=name,
                interpret=chosen.interpret,
            )
        return jax.tree.unflatten(tree, _without_gradient(run, operands, as_limit(limit)))

    return over_valid_rows


def supports(fn: Callable[..., Any], *operands: Any, chip: Chip | None) -> str | None:
    """Why `fn` on these arrays (or shapes) cannot become a kernel, None if it can.

    `chip` is the TPU that the trace is for (`hloscope_kernels.chip.tpu_chip()`), None on another
    platform.
    """
    try:
        program, _ = read_program(fn, operands)
        rows = _rows(operands)
        infer_roles(program, rows)
    except NotRowWiseError as error:
        return str(error)
    if chip is None:
        return _wrong_kind(program) or "the kernel is for TPU"
    return _reason(program, rows, chip)


def _rows(operands: tuple[Any, ...]) -> int:
    if not operands or not operands[0].shape or operands[0].size == 0:
        raise NotRowWiseError("the first operand must be [rows, columns] or [rows], and not empty")
    return operands[0].shape[0]


def _blocks(program: Program, rows: int, chip: Chip) -> Blocks | None:
    return blocks_for(rows, row_bytes(program), vector_count(program), len(program.operations), chip)


def _reason(program: Program, rows: int, chip: Chip) -> str | None:
    why = _wrong_kind(program)
    if why is None and _blocks(program, rows, chip) is None:
        why = f"rows of {row_bytes(program)} bytes over all operands and results do not fit VMEM"
    return why


def _wrong_kind(program: Program) -> str | None:
    """What the kernel does not read or write, on whatever chip."""
    for value in (*program.inputs, *program.outputs):
        kind = program.types[value] if isinstance(value, int) else None
        if kind is None or str(kind.dtype) in _DTYPES:
            continue
        if kind.dtype != jnp.bool_:
            return f"the kernel reads and writes {', '.join(_DTYPES)}, not {kind.dtype}"
        if value in program.outputs or not is_vector(kind.shape):
            return (
                f"the kernel takes booleans as one operand per row, not as {list(kind.shape)} or as a result"
            )
    return None


def _check_aliases(program: Program, aliases: dict[int, int]) -> None:
    for operand, result in aliases.items():
        if operand >= len(program.inputs) or result >= len(program.outputs):
            raise ValueError(f"donate={{{operand}: {result}}}: there is no such operand or result")
        given, returned = program.types[program.inputs[operand]], program.outputs[result]
        kind = program.types[returned] if isinstance(returned, int) else None
        if kind is None or (given.shape, given.dtype) != (kind.shape, kind.dtype) or len(given.shape) != 2:
            raise ValueError(
                f"donate={{{operand}: {result}}}: operand {operand} is {given.dtype}{list(given.shape)}, "
                f"its result is {kind and kind.dtype}{list(kind.shape) if kind else []}; both must be the "
                "same [rows, columns]"
            )


def _without_gradient(run: Callable[..., Any], operands: tuple[jax.Array, ...], limit: jax.Array) -> Any:
    """Run; whoever differentiates it is told what to do instead."""

    @jax.custom_jvp
    def call(operands: tuple[jax.Array, ...], limit: jax.Array) -> Any:
        return run(operands, limit)

    def refuse(primals: Any, tangents: Any) -> NoReturn:
        raise ValueError(
            "valid_rows has no gradient: differentiate the function first (jax.vjp), then wrap its forward "
            "and its backward function in valid_rows"
        )

    call.defjvp(refuse)
    return call(tuple(jnp.asarray(operand) for operand in operands), limit)
