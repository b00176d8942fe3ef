"""Evaluates a row-wise program on one tile of rows, a few columns at a time, in float32.

Values are pulled: whoever needs columns [start, stop) of a value asks for just these, down to the
operands. A column split, concatenation or pad is then only a change of the range, and no wide
intermediate ever exists. What a value depends on decides the form of its tile:

- on its row: [rows, 128], the number in all lanes, so that meeting a matrix costs nothing;
- on its column: [1, columns];
- on both: [rows, columns];
- on neither: a scalar, known when the kernel is traced.
"""

# jax annotates these functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hloscope_kernels.exponential import exp_of_minus
from hloscope_kernels.lanes import LANES
from hloscope_kernels.valid_rows.program import Constant, Operand, Operation, Program
from hloscope_kernels.valid_rows.roles import ELEMENTWISE, REDUCTIONS, Role

Load = Callable[[int, int, int], jax.Array]
_COMBINE: dict[str, tuple[Any, Any]] = {
    "reduce_sum": (jnp.add, jnp.sum),
    "reduce_max": (jnp.maximum, jnp.max),
    "reduce_min": (jnp.minimum, jnp.min),
}


def wide_dtype(dtype: Any) -> Any:
    """The dtype that a kernel computes in: floating point numbers narrower than 32 bits become float32."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.dtype(jnp.float32) if narrow else jnp.dtype(dtype)


def widen(value: Any) -> jax.Array:
    """A value in the dtype that a kernel computes in; a constant keeps the rounding of its own dtype."""
    array = jnp.asarray(value)
    return array.astype(wide_dtype(array.dtype))


def bind(operation: Operation, operands: list[Any], *, for_machine: bool = False) -> list[jax.Array]:
    """Apply an elementwise operation to wide operands of one shape, in the order in which XLA computes.

    `for_machine`: see `exp_of_minus`.
    """
    params = dict(operation.params)
    if operation.name == "convert_element_type":
        return [operands[0].astype(wide_dtype(params["new_dtype"]))]
    if operation.name == "logistic":
        return [1.0 / (1.0 + exp_of_minus(operands[0], for_machine=for_machine))]
    if operation.name in ("copy", "copy_p", "name", "pcast", "pvary", "stop_gradient"):
        return operands
    if operation.name == "add_any":
        return [operands[0] + operands[1]]
    results = operation.primitive.bind(*operands, **params)
    return list(results) if operation.primitive.multiple_results else [results]


class Tile:
    """One tile of rows of a program.

    Attributes:
      rows: rows of the tile.
      first_row: the tile's first row in the buffer.
      load: (input or captured value, start, stop) to columns of it, wide; for numbers per row, their
        [rows, 128].
      for_machine: see `exp_of_minus`.
    """

    def __init__(
        self,
        program: Program,
        roles: dict[int, Role],
        rows: int,
        first_row: Any,
        load: Load,
        *,
        for_machine: bool,
    ) -> None:
        self.program, self.roles, self.rows = program, roles, rows
        self.first_row, self.load, self.for_machine = first_row, load, for_machine
        self._makers = {result: operation for operation in program.operations for result in operation.results}
        self._per_row: dict[int, Any] = {}
        self._chunk: dict[tuple[int, int, int], Any] = {}

    def next_chunk(self) -> None:
        """Forget the columns computed so far: their registers are free for the next ones."""
        self._chunk.clear()

    def role(self, operand: Operand) -> Role:
        """What an operand depends on."""
        return Role.SPLAT if isinstance(operand, Constant) else self.roles[operand]

    def width(self, operand: Operand) -> int:
        """Columns of an operand."""
        shape = () if isinstance(operand, Constant) else self.program.types[operand].shape
        return shape[-1] if len(shape) == 2 or (shape and not self.role(operand) & Role.ROWS) else 1

    def pull(self, operand: Operand, start: int, stop: int) -> Any:
        """Columns [start, stop) of a value, in the form of its role."""
        if isinstance(operand, Constant):
            return _literal(operand)
        role = self.roles[operand]
        if role == Role.ROWS:
            if operand not in self._per_row:
                self._per_row[operand] = self._compute(operand, 0, LANES)
            return self._per_row[operand]
        key = (operand, start, stop)
        if key not in self._chunk:
            self._chunk[key] = self._compute(operand, start, stop)
        return self._chunk[key]

    def matrix(self, operand: Operand, start: int, stop: int) -> jax.Array:
        """Columns [start, stop) of a value as [rows, columns], whatever it depends on."""
        return self._spread(operand, start, stop, Role.MATRIX)

    def per_row(self, operand: Operand) -> jax.Array:
        """A number per row, in all lanes: [rows, 128]."""
        if self.role(operand) == Role.MATRIX:
            return jnp.broadcast_to(self.pull(operand, 0, 1), (self.rows, LANES))
        return self._spread(operand, 0, LANES, Role.ROWS)

    def partial_sums(self, operand: Operand, start: int, stop: int) -> jax.Array:
        """The sum of columns [start, stop), at most 128 of them, spread over 128 lanes: [rows, 128]."""
        columns = self.matrix(operand, start, stop)
        missing = LANES - (stop - start)
        return jnp.pad(columns, ((0, 0), (0, missing))) if missing else columns

    def _compute(self, value: int, start: int, stop: int) -> Any:
        operation = self._makers.get(value)
        if operation is None:
            return self.load(value, start, stop)
        if operation.name in ELEMENTWISE:
            return self._elementwise(operation, value, start, stop)
        if operation.name in REDUCTIONS:
            return self._reduction(operation)
        move = cast("Callable[..., Any]", getattr(self, f"_{operation.name}"))
        return move(operation, value, start, stop)

    def _elementwise(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        role = self.roles[value]
        operands = [self._spread(operand, start, stop, role) for operand in operation.operands]
        if role == Role.SPLAT:
            with jax.ensure_compile_time_eval():
                (result,) = bind(operation, [jnp.asarray(operand) for operand in operands])
                return np.asarray(result)[()]
        (result,) = bind(operation, operands, for_machine=self.for_machine)
        return result

    def _spread(self, operand: Operand, start: int, stop: int, role: Role) -> Any:
        """A value in the form of a role that includes its own."""
        value, own = self.pull(operand, start, stop), self.role(operand)
        if role == Role.SPLAT or own == role == Role.MATRIX:
            return value
        if own & Role.ROWS and role == Role.MATRIX:
            copies = -(-(stop - start) // LANES)
            return (
                jnp.concatenate([value] * copies, axis=1)[:, : stop - start]
                if copies > 1
                else (value[:, : stop - start])
            )
        shape = {
            Role.ROWS: (self.rows, LANES),
            Role.COLUMNS: (1, stop - start),
            Role.MATRIX: (self.rows, stop - start),
        }[role]
        return value if np.shape(value) == shape else jnp.broadcast_to(value, shape)

    def _reduction(self, operation: Operation) -> jax.Array:
        combine, reduce = _COMBINE[operation.name]
        (operand,) = operation.operands
        width = self.width(operand)
        whole = width // LANES * LANES
        lanes = None
        for start in range(0, whole, LANES):
            chunk = self.matrix(operand, start, start + LANES)
            lanes = chunk if lanes is None else combine(lanes, chunk)
            self.next_chunk()
        parts = [] if lanes is None else [lanes]
        if whole < width:
            parts.append(self.matrix(operand, whole, width))
        result = reduce(parts[0], axis=1, keepdims=True)
        for part in parts[1:]:
            result = combine(result, reduce(part, axis=1, keepdims=True))
        return jnp.broadcast_to(result, (self.rows, LANES))

    def _broadcast_in_dim(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        operand = operation.operands[0]
        # One column may stand for many; a number per row already does.
        if self.width(operand) == 1 and self.role(operand) & Role.COLUMNS:
            rows = 1 if self.roles[value] == Role.COLUMNS else self.rows
            return jnp.broadcast_to(self.pull(operand, 0, 1), (rows, stop - start))
        return self.pull(operand, start, stop)

    def _same(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        return self.pull(operation.operands[0], start, stop)

    _reshape = _squeeze = _expand_dims = _same

    def _slice(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        offset = operation.params["start_indices"][-1] if self.width(operation.operands[0]) > 1 else 0
        return self.pull(operation.operands[0], start + offset, stop + offset)

    def _split(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        position = operation.results.index(value)
        offset = sum(operation.params["sizes"][:position])
        return self.pull(operation.operands[0], start + offset, stop + offset)

    def _concatenate(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        parts: list[Any] = []
        offset = 0
        for operand in operation.operands:
            width = self.program.types[cast("int", operand)].shape[-1]
            first, last = max(start, offset), min(stop, offset + width)
            if first < last:
                role = self.roles[value]
                parts.append(self._spread(operand, first - offset, last - offset, role))
            offset += width
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def _pad(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        operand, filling = operation.operands
        low = operation.params["padding_config"][-1][0]
        width = self.program.types[cast("int", operand)].shape[-1]
        role = self.roles[value]
        rows = 1 if role == Role.COLUMNS else self.rows
        first, last = max(start, low), min(stop, low + width)
        parts: list[Any] = []
        for begin, end in ((start, min(stop, low)), (first, last), (max(start, low + width), stop)):
            if begin >= end:
                continue
            if (begin, end) == (first, last):
                parts.append(self._spread(operand, begin - low, end - low, role))
            else:
                parts.append(jnp.full((rows, end - begin), self.pull(filling, 0, 1)))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

    def _iota(self, operation: Operation, value: int, start: int, stop: int) -> Any:
        dtype = wide_dtype(operation.params["dtype"])
        if self.roles[value] == Role.ROWS:
            rows = lax.broadcasted_iota(jnp.int32, (self.rows, LANES), 0) + self.first_row
            return rows.astype(dtype)
        return (lax.broadcasted_iota(jnp.int32, (1, stop - start), 1) + start).astype(dtype)


def _literal(constant: Constant) -> Any:
    value = np.asarray(constant.value, constant.dtype)
    return value.astype(wide_dtype(constant.dtype))[()]
