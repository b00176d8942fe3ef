"""Row-wise work in one body: what it ends in, what it starts from, and which of it belongs together.

Work is cut only where a buffer exists anyway: between the results of operations that are not row-wise
(matmuls, gathers, inputs) and the values that such operations read. In between everything is computed again
where it is needed, so no intermediate becomes a buffer by being cut.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.order import needed_by, operands
from hloscope_kernels.valid_rows.roles import ELEMENTWISE, REDUCTIONS

# They only move columns, or change nothing.
_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "copy",
        "copy_p",
        "expand_dims",
        "iota",
        "name",
        "pcast",
        "pvary",
        "reshape",
        "slice",
    }
    | {"split", "squeeze", "stop_gradient"}
)
_ROW_OPERATIONS = ELEMENTWISE | REDUCTIONS | _MOVES | {"concatenate", "pad"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cone:
    """A value that something other than row-wise work reads, and the row-wise work that makes it.

    Attributes:
      sink: the value.
      equations: what makes it, in order.
      leaves: what it is made from, one per row or a matrix of rows, in order of first use.
      uniform: what is the same for all rows: scalars, rows of columns.
    """

    sink: Any
    equations: tuple[Any, ...]
    leaves: tuple[Any, ...]
    uniform: tuple[Any, ...]

    @property
    def matrices(self) -> frozenset[Any]:
        """The leaves with more than one column."""
        return frozenset(leaf for leaf in self.leaves if is_matrix(leaf))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Cones that one kernel can compute.

    Attributes:
      cones: what it returns.
      rows: rows of all its buffers.
    """

    cones: tuple[Cone, ...]
    rows: int

    @property
    def sinks(self) -> tuple[Any, ...]:
        """What it returns."""
        return tuple(cone.sink for cone in self.cones)

    @property
    def leaves(self) -> tuple[Any, ...]:
        """What it reads row by row."""
        return tuple(dict.fromkeys(leaf for cone in self.cones for leaf in cone.leaves))

    @property
    def uniform(self) -> tuple[Any, ...]:
        """What it reads that is the same for all rows."""
        return tuple(dict.fromkeys(value for cone in self.cones for value in cone.uniform))

    @property
    def matrices(self) -> frozenset[Any]:
        """The matrices that it reads."""
        return frozenset(leaf for leaf in self.leaves if is_matrix(leaf))

    @property
    def equations(self) -> list[Any]:
        """All its work, in order, each equation once."""
        return list({id(each): each for cone in self.cones for each in cone.equations}.values())

    @property
    def bytes(self) -> int:
        """What is read and written when every row is."""
        return sum(value_bytes(value) for value in (*self.leaves, *self.sinks))


def is_matrix(value: Any) -> bool:
    """[rows, columns] with more than one column."""
    return len(value.aval.shape) == 2 and value.aval.shape[1] > 1


def value_bytes(value: Any) -> int:
    """Bytes of an array, without padding."""
    return int(value.aval.size) * value.aval.dtype.itemsize


@dataclass(slots=True)
class Body:
    """Row-wise work of one body.

    Attributes:
      jaxpr: the body.
      rows: of the buffers that are looked at.
      dead: whether the tail of a value is dead; only through such values is work followed.
    """

    jaxpr: Any
    rows: int
    dead: Callable[[Any], bool]
    _makers: dict[Any, Any] = field(default_factory=dict[Any, Any])
    _position: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        for position, equation in enumerate(self.jaxpr.eqns):
            self._position[id(equation)] = position
            self._makers.update(dict.fromkeys(equation.outvars, equation))

    def is_row_work(self, equation: Any) -> bool:
        """Whether an equation is row-wise on these buffers and the tails of its results are dead."""
        return is_row_operation(equation, self.rows) and all(map(self.dead, equation.outvars))

    def cones(self) -> list[Cone]:
        """The cones worth a kernel."""
        read: dict[Any, None] = {}
        for equation in self.jaxpr.eqns:
            if not self.is_row_work(equation):
                read.update(dict.fromkeys(operands(equation)))
        read.update(dict.fromkeys(atom for atom in self.jaxpr.outvars if not jaxprs.is_literal(atom)))
        sinks = [var for var in read if var in self._makers and self.is_row_work(self._makers[var])]
        return [cone for cone in map(self.cone, sinks) if is_work(cone)]

    def cone(self, sink: Any) -> Cone:
        """The work behind one value."""
        found: dict[int, Any] = {}
        leaves: dict[Any, None] = {}
        uniform: dict[Any, None] = {}
        pending = [sink]
        while pending:
            var = pending.pop()
            maker = self._makers.get(var)
            if maker is not None and (self.is_row_work(maker) or _is_constant(maker)):
                if id(maker) not in found:
                    found[id(maker)] = maker
                    pending += reversed(operands(maker))
            elif self.has_rows(var):
                leaves[var] = None
            else:
                uniform[var] = None
        ordered = sorted(found.values(), key=lambda equation: self._position[id(equation)])
        return Cone(sink=sink, equations=tuple(ordered), leaves=tuple(leaves), uniform=tuple(uniform))

    def has_rows(self, var: Any) -> bool:
        """Whether a value has one entry, or one row, for each row of the buffers."""
        return tuple(var.aval.shape[:1]) == (self.rows,)

    def groups(self, cones: Sequence[Cone], alike: Callable[[Any, Any], bool]) -> list[Group]:
        """Cones that read the same matrices together; sums per row join whoever reads one of their matrices.

        `alike` tells whether two values end at the same limit.
        """
        groups: list[Group] = []
        for cone in cones:
            self._add(groups, cone, lambda group, cone: group.matrices == cone.matrices, alike)
        return self._with_sums(groups, alike)

    def _add(
        self,
        groups: list[Group],
        cone: Cone,
        fits: Callable[[Group, Cone], bool],
        alike: Callable[[Any, Any], bool],
    ) -> None:
        for index, group in enumerate(groups):
            if fits(group, cone) and alike(group.sinks[0], cone.sink) and self._independent(group, cone):
                groups[index] = Group(cones=(*group.cones, cone), rows=self.rows)
                return
        groups.append(Group(cones=(cone,), rows=self.rows))

    def _with_sums(self, groups: list[Group], alike: Callable[[Any, Any], bool]) -> list[Group]:
        kept = [group for group in groups if any(map(is_matrix, group.sinks))]
        for group in groups:
            for cone in () if any(map(is_matrix, group.sinks)) else group.cones:
                self._add(kept, cone, lambda group, cone: bool(group.matrices & cone.matrices), alike)
        return kept

    def _independent(self, group: Group, cone: Cone) -> bool:
        """Whether neither needs what the other makes."""
        return not self._needs(cone.leaves, group.sinks) and not self._needs(group.leaves, (cone.sink,))

    def _needs(self, values: Iterable[Any], sinks: Iterable[Any]) -> bool:
        needed = needed_by(list(values), self.jaxpr.eqns)
        return any(id(self._makers[sink]) in needed for sink in sinks)


def is_row_operation(equation: Any, rows: int) -> bool:
    """Whether an equation is of a row-wise kind, with results of these rows, at most two-dimensional."""
    return (
        equation.primitive.name in _ROW_OPERATIONS
        and not equation.effects
        and all(tuple(var.aval.shape[:1]) == (rows,) and len(var.aval.shape) <= 2 for var in equation.outvars)
        and all(len(atom.aval.shape) <= 2 for atom in equation.invars)
        and _keeps_rows(equation, rows)
    )


def _keeps_rows(equation: Any, rows: int) -> bool:
    """Whether row i of the results is made of rows i of the operands."""
    params = equation.params
    shapes = [tuple(atom.aval.shape) for atom in equation.invars]
    match equation.primitive.name:
        case "broadcast_in_dim":
            return shapes[0][:1] != (rows,) or next(iter(params["broadcast_dimensions"])) == 0
        case "iota":
            return True
        case "slice":
            return params["start_indices"][0] == 0 and shapes[0][:1] == (rows,)
        case "concatenate":
            return params["dimension"] == 1
        case "split":
            return params["axis"] == 1
        case "pad":
            return tuple(map(int, params["padding_config"][0])) == (0, 0, 0)
        case "reshape" | "squeeze" | "expand_dims":
            return shapes[0][:1] == (rows,)
        case name if name in REDUCTIONS:
            return tuple(params["axes"]) == (1,)
        case _:
            return True


def is_work(cone: Cone) -> bool:
    """Whether a cone computes something on matrices, or puts matrices together."""
    return bool(cone.matrices) and any(
        equation.primitive.name not in _MOVES
        and any(is_matrix(value) for value in (*operands(equation), *equation.outvars))
        for equation in cone.equations
    )


def _is_constant(equation: Any) -> bool:
    """A number of the program's text, in whatever type it is wanted."""
    return equation.primitive.name in ("pvary", "pcast", "convert_element_type") and all(
        map(jaxprs.is_literal, equation.invars)
    )
