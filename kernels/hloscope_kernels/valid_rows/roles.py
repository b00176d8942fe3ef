"""Is a program row-wise? What each value depends on, or why a row of the result needs other rows.

Arrays are [rows, columns], [rows], [columns] or scalars. A value depends on its row, on its column, on
both or on neither; an operation that keeps this apart is row-wise, whatever it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag
from typing import Any

from hloscope_kernels.valid_rows.program import Constant, Operand, Operation, Program

ELEMENTWISE = frozenset(
    {
        "abs",
        "add",
        "add_any",
        "and",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "div",
        "eq",
        "erf",
        "exp",
        "exp2",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "not",
        "one_minus_square",
        "or",
        "pcast",
        "pow",
        "pvary",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tanh",
        "xor",
    }
)
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


class Role(IntFlag):
    """What a value depends on."""

    SPLAT = 0
    ROWS = 1
    COLUMNS = 2
    MATRIX = 3


class NotRowWiseError(ValueError):
    """A function is not row-wise; says which operation and why."""


def infer_roles(program: Program, rows: int) -> dict[int, Role]:
    """The role of every value.

    Raises:
      NotRowWiseError: an operation mixes rows, or is not known here.
    """
    roles: dict[int, Role] = {}
    for position, value in enumerate(program.inputs):
        roles[value] = _input_role(program, value, rows, position)
    for value in program.captured:
        roles[value] = _captured_role(program, value)
    # What is one number for all rows and columns, however often it stands.
    single = {value for value in program.captured if program.types[value].shape == ()}
    for operation in program.operations:
        check = _check_for(operation)
        context = _Context(program, roles, operation, rows, single)
        role = check(context)
        if operation.name in ELEMENTWISE | _SPREADING and context.of_one_number:
            single.update(operation.results)
        for result in operation.results:
            if len(program.types[result].shape) > 2:
                raise _refuse(operation, f"its result has shape {list(program.types[result].shape)}")
            roles[result] = role
    for output in program.outputs:
        _check_output(program, roles, output, rows)
    return roles


def _input_role(program: Program, value: int, rows: int, position: int) -> Role:
    shape = program.types[value].shape
    if len(shape) not in (1, 2) or shape[0] != rows:
        raise NotRowWiseError(
            f"operand {position} has shape {list(shape)}, not [{rows}] or [{rows}, columns]; "
            "what is the same for all rows must be captured by the function"
        )
    return Role.ROWS if len(shape) == 1 or shape[1] == 1 else Role.MATRIX


def _captured_role(program: Program, value: int) -> Role:
    shape = program.types[value].shape
    if len(shape) > 2 or (len(shape) == 2 and shape[0] != 1):
        raise NotRowWiseError(
            f"a captured array has shape {list(shape)}: only scalars, [columns] and [1, columns] can be "
            "captured; what differs by row must be an operand"
        )
    return Role.COLUMNS


def _check_output(program: Program, roles: dict[int, Role], output: Operand, rows: int) -> None:
    shape = () if isinstance(output, Constant) else program.types[output].shape
    if isinstance(output, Constant) or not shape or shape[0] != rows:
        raise NotRowWiseError(f"a result has shape {list(shape)}, not [{rows}] or [{rows}, columns]")
    if len(shape) == 1 and roles[output] & Role.COLUMNS:
        raise NotRowWiseError(f"a result of shape {list(shape)} does not depend on its row")


class _Context:
    """One operation and what is known of its operands."""

    def __init__(
        self, program: Program, roles: dict[int, Role], operation: Operation, rows: int, single: set[int]
    ) -> None:
        self.single = [isinstance(operand, Constant) or operand in single for operand in operation.operands]
        self.operation, self.params, self.rows = operation, operation.params, rows
        self.shapes = [
            () if isinstance(operand, Constant) else program.types[operand].shape
            for operand in operation.operands
        ]
        self.roles = [
            Role.SPLAT if isinstance(operand, Constant) else roles[operand] for operand in operation.operands
        ]
        self.result_shape = program.types[operation.results[0]].shape

    @property
    def of_one_number(self) -> bool:
        """Whether every operand is one number for all rows and columns."""
        return bool(self.single) and all(self.single)

    @property
    def joined(self) -> Role:
        role = Role.SPLAT
        for own in self.roles:
            role |= own
        return role

    @property
    def depends_on_rows_only(self) -> bool:
        """Whether the operands are numbers per row, and numbers that are the same for all."""
        return all(role == Role.ROWS or one for role, one in zip(self.roles, self.single, strict=True))

    def column_axis(self, operand: int = 0) -> int | None:
        """The axis of an operand that runs over columns, None where it has none."""
        shape = self.shapes[operand]
        if len(shape) == 2:
            return 1
        return 0 if len(shape) == 1 and not self.roles[operand] & Role.ROWS else None


def _refuse(operation: Operation, why: str) -> NotRowWiseError:
    return NotRowWiseError(f"{operation.name} is not row-wise: {why}")


def _elementwise(context: _Context) -> Role:
    if context.joined == Role.MATRIX and len(context.result_shape) < 2:
        if context.depends_on_rows_only:
            return Role.ROWS
        raise _refuse(context.operation, "it combines a number per row with a number per column")
    return context.joined


def _broadcast(context: _Context) -> Role:
    axes = tuple(context.params["broadcast_dimensions"])
    role, shape = context.roles[0], context.shapes[0]
    _check_kept_axes(context, dict(enumerate(axes)))
    if len(shape) == 1 and len(context.result_shape) == 2:
        wanted = 0 if role & Role.ROWS else 1
        if role != Role.SPLAT and axes[0] != wanted:
            raise _refuse(context.operation, "it turns rows into columns")
    return role


def _reshape(context: _Context) -> Role:
    """Only dimensions of 1 may come and go."""
    before, after = context.shapes[0], context.result_shape
    role = context.roles[0]
    if [size for size in before if size != 1] != [size for size in after if size != 1]:
        raise _refuse(context.operation, f"from {list(before)} to {list(after)}")
    if role & Role.ROWS and after[0] != context.rows:
        raise _refuse(context.operation, "it moves rows to another dimension")
    if role == Role.COLUMNS and len(after) == 2 and after[1] == 1 and after[0] != 1:
        raise _refuse(context.operation, "it turns columns into rows")
    return role


def _check_kept_axes(context: _Context, axes: dict[int, int]) -> None:
    if len(context.shapes[0]) == 2 and axes != {0: 0, 1: 1}:
        raise _refuse(context.operation, "it moves rows to another dimension")


def _slice(context: _Context) -> Role:
    column = context.column_axis()
    starts, stops = context.params["start_indices"], context.params["limit_indices"]
    for axis, size in enumerate(context.shapes[0]):
        if axis != column and (starts[axis], stops[axis]) != (0, size):
            raise _refuse(context.operation, "it takes some rows of many")
    if any(stride != 1 for stride in context.params["strides"] or ()):
        raise _refuse(context.operation, "it has a stride")
    return context.roles[0]


def _split(context: _Context) -> Role:
    if context.params["axis"] != context.column_axis():
        raise _refuse(context.operation, "it splits rows")
    return context.roles[0]


def _concatenate(context: _Context) -> Role:
    if len(context.result_shape) != 2 or context.params["dimension"] != 1:
        raise _refuse(context.operation, "it is not over columns")
    return context.joined | Role.COLUMNS


def _pad(context: _Context) -> Role:
    column = context.column_axis()
    for axis, (low, high, interior) in enumerate(context.params["padding_config"]):
        if interior or low < 0 or high < 0 or (axis != column and (low or high)):
            raise _refuse(context.operation, "it is not at the ends of the columns only")
    if context.roles[1] != Role.SPLAT:
        raise _refuse(context.operation, "it pads with something computed")
    return context.joined | Role.COLUMNS


def _iota(context: _Context) -> Role:
    over_rows = context.params["dimension"] == 0 and context.result_shape[0] == context.rows
    return Role.ROWS if over_rows else Role.COLUMNS


def _reduction(context: _Context) -> Role:
    axes = tuple(context.params["axes"])
    if axes != (context.column_axis(),):
        raise _refuse(context.operation, "it reduces over rows")
    if not context.roles[0] & Role.ROWS:
        raise _refuse(
            context.operation, "it reduces what is the same in all rows; capture its result instead"
        )
    return Role.ROWS


_SPREADING = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims"})
_CHECKS: dict[str, Callable[[_Context], Role]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "slice": _slice,
    "split": _split,
    "concatenate": _concatenate,
    "pad": _pad,
    "iota": _iota,
}


def _check_for(operation: Operation) -> Callable[[_Context], Any]:
    if operation.name in ELEMENTWISE:
        return _elementwise
    if operation.name in REDUCTIONS:
        return _reduction
    check = _CHECKS.get(operation.name)
    if check is None:
        raise NotRowWiseError(f"{operation.name} is not among the operations that are known to be row-wise")
    return check
