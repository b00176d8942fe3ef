"""The module: computations, callers, loops with trip counts, executions, stack frames, and the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from hloscope.errors import UserError
from hloscope.hlo.instruction import Computation, Instruction
from hloscope.hlo.loops import trip_count
from hloscope.hlo.shape import Shape, decode_shape
from hloscope.hlo.source import StackFrames

if TYPE_CHECKING:
    import networkx as nx

    from hloscope.hlo import protos

# Instructions that run the computations that they call, instruction by instruction.
_CONTROL_OPCODES = frozenset({"while", "conditional", "call", "async-start"})


# The fewest operands of instructions whose operands are looked at without asking.
_OPERANDS = {
    "bitcast": 1, "reshape": 1, "copy": 1, "copy-start": 1, "convert": 1, "broadcast": 1, "transpose": 1,
    "reverse": 1, "slice": 1, "dynamic-slice": 1, "gather": 1, "scatter": 1, "dynamic-update-slice": 2,
    "get-tuple-element": 1, "exponential": 1, "while": 1,
}  # fmt: skip


class Module:
    """An HLO module. Immutable; everything derived is computed once, when it is first asked for."""

    def __init__(self, proto: protos.HloModuleProto) -> None:
        self._proto = proto
        self._shapes: dict[bytes, Shape] = {}
        self._check()

    @property
    def name(self) -> str:
        """The module's name, e.g. `jit_train_step`."""
        return self._proto.name

    @property
    def proto(self) -> protos.HloModuleProto:
        """The message itself (do not change it)."""
        return self._proto

    @cached_property
    def computations(self) -> tuple[Computation, ...]:
        """Every computation, callees before callers."""
        return tuple(Computation(p, self) for p in self._proto.computations)

    @cached_property
    def computations_by_id(self) -> Mapping[int, Computation]:
        """Computations by id."""
        return {c.id: c for c in self.computations}

    @property
    def entry(self) -> Computation:
        """The computation that the program starts with."""
        return self.computations_by_id[self._proto.entry_computation_id]

    @property
    def is_scheduled(self) -> bool:
        """Whether the compiler fixed the order in which instructions run."""
        return bool(self._proto.schedule.sequences)

    @property
    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation."""
        for computation in self.computations:
            yield from computation.instructions

    @cached_property
    def instruction_count(self) -> int:
        """Instructions as XLA's text lists them: get-tuple-element, which it does not print, left out."""
        return sum(i.opcode != "get-tuple-element" for i in self.instructions)

    @cached_property
    def num_partitions(self) -> int | None:
        """Devices that the program is partitioned over; None where the module does not say."""
        assignment = self._proto.device_assignment
        count = assignment.replica_count * assignment.computation_count
        return count or None

    @cached_property
    def stack_frames(self) -> StackFrames:
        """The tables behind `Instruction.frames`."""
        return StackFrames(self._proto.stack_frame_index)

    def callers_of(self, computation: Computation) -> tuple[Instruction, ...]:
        """The instructions that call `computation`."""
        return self._callers.get(computation.id, ())

    @cached_property
    def _callers(self) -> dict[int, tuple[Instruction, ...]]:
        found: dict[int, list[Instruction]] = {}
        for instruction in self.instructions:
            for callee in instruction.proto.called_computation_ids:
                found.setdefault(callee, []).append(instruction)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def trip_counts(self) -> Mapping[int, int | None]:
        """Trips of every `while`, by instruction id; None where they cannot be derived."""
        return {i.id: trip_count(i) for i in self.instructions if i.opcode == "while"}

    def executions(self, computation: Computation) -> int | None:
        """How often a computation runs in one step, loop trips included; None where it is not known.

        A branch of a conditional is unknown, and so is all that it calls.
        """
        return self._executions[computation.id]

    @cached_property
    def _executions(self) -> dict[int, int | None]:
        counts: dict[int, int | None] = {}
        # Callees stand before callers, so the reverse meets every caller first.
        for computation in reversed(self.computations):
            if computation.id == self._proto.entry_computation_id:
                counts[computation.id] = 1
                continue
            total: int | None = 0
            for caller in self.callers_of(computation):
                share = self._share(caller, computation, counts.get(caller.computation.id))
                total = None if total is None or share is None else total + share
            counts[computation.id] = total
        return counts

    def _share(self, caller: Instruction, callee: Computation, runs: int | None) -> int | None:
        if caller.opcode in ("async-update", "async-done"):
            return 0  # older modules name the computation here again; its start has counted it
        if runs is None or caller.opcode == "conditional":
            return None
        if caller.opcode != "while":
            return runs
        trips = self.trip_counts[caller.id]
        if trips is None:
            return None
        is_body = caller.proto.called_computation_ids[0] == callee.id
        return runs * (trips if is_body else trips + 1)

    @cached_property
    def control_computations(self) -> tuple[Computation, ...]:
        """Computations whose instructions run one by one: the entry, loop conditions and bodies, branches,
        calls and asynchronous computations; not the bodies of fusions, reducers, comparators and the like.

        Every piece of work of a step stands in exactly one of them.
        """
        reached = {self._proto.entry_computation_id}
        for computation in reversed(self.computations):
            if computation.id not in reached:
                continue
            for instruction in computation.instructions:
                if instruction.opcode in _CONTROL_OPCODES:
                    reached.update(instruction.proto.called_computation_ids)
        return tuple(c for c in self.computations if c.id in reached)

    def intern_shape(self, proto: protos.Shape) -> Shape:
        """The decoded shape; equal shapes of one module are one object."""
        key = proto.SerializeToString()
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = decode_shape(proto)
        return shape

    def graph(self) -> nx.DiGraph[str]:
        """The data flow as a networkx graph of instruction names.

        Edges run from operand to user (`kind="operand"`), from predecessor to successor (`"control"`)
        and from caller to a called computation's root (`"calls"`). Nodes carry `instruction`.
        """
        from hloscope.hlo.graph import module_graph

        return module_graph(self)

    def find(self, name: str) -> Instruction | None:
        """The instruction of that name (with or without `%`), or None."""
        return self._by_name.get(name.removeprefix("%"))

    @cached_property
    def _by_name(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}

    def _check(self) -> None:
        """Refuse a module whose references point nowhere, so that nothing later has to ask."""
        ids = {c.id for c in self._proto.computations}
        if self._proto.entry_computation_id not in ids:
            raise UserError(
                f"module {self.name!r} has no entry computation: the file is damaged or no HLO module"
            )
        if len(ids) != len(self._proto.computations):
            raise UserError(f"module {self.name!r} has two computations with one id: the file is damaged")
        done: set[int] = set()
        for computation in self._proto.computations:
            _check_computation(computation, done)
            done.add(computation.id)


def _check_computation(computation: protos.Computation, callees: set[int]) -> None:
    seen: set[int] = set()
    for instruction in computation.instructions:
        if not seen.issuperset(instruction.operand_ids):
            raise UserError(
                f"%{instruction.name} has an operand that does not come before it: the file is damaged"
            )
        if len(instruction.operand_ids) < _OPERANDS.get(instruction.opcode, 0):
            raise UserError(f"%{instruction.name} lacks an operand: the file is damaged")
        # Callees come first in a sound module, so this also rules out cycles of calls.
        if not callees.issuperset(instruction.called_computation_ids):
            raise UserError(
                f"%{instruction.name} calls a computation that does not come before it: the file is damaged"
            )
        seen.add(instruction.id)
    if computation.root_id not in seen or len(seen) != len(computation.instructions):
        raise UserError(f"computation {computation.name!r} has no root or two instructions with one id")
