"""The module: computations, callers, loops with trip counts, executions, stack frames, and the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from hloscope.hlo.index import index_module
from hloscope.hlo.instruction import Computation, Instruction
from hloscope.hlo.loops import trip_count
from hloscope.hlo.shape import KnownShapes, Shape
from hloscope.hlo.shown import drawn
from hloscope.hlo.source import StackFrames

if TYPE_CHECKING:
    import networkx as nx

    from hloscope.hlo import protos

# Instructions that run the computations that they call, instruction by instruction.
_CONTROL_OPCODES = frozenset({"while", "conditional", "call", "async-start"})


class Module:
    """An HLO module. Immutable; everything derived is computed once, when it is first asked for."""

    def __init__(self, proto: protos.HloModuleProto) -> None:
        self._proto = proto
        # By the bytes of their messages; equal shapes are one object.
        self.shapes = KnownShapes()
        self._callers: dict[int, tuple[Instruction, ...]] = {}
        # What functions have told so far, by function and by what each was asked about: `hloscope.hlo.memo`.
        self.facts: defaultdict[object, dict[Any, Any]] = defaultdict(dict)
        # The order of instructions by computation, where the compiler fixed it.
        self.sequences: Mapping[int, protos.Schedule.InstructionSequence] = proto.schedule.sequences
        self._index = index_module(proto, self)

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
        return tuple(self._index.computations.values())

    @property
    def computations_by_id(self) -> Mapping[int, Computation]:
        """Computations by id."""
        return self._index.computations

    @property
    def entry(self) -> Computation:
        """The computation that the program starts with."""
        return self.computations_by_id[self._proto.entry_computation_id]

    @property
    def is_scheduled(self) -> bool:
        """Whether the compiler fixed the order in which instructions run."""
        return bool(self.sequences)

    @property
    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation."""
        for computation in self.computations:
            yield from computation.instructions

    @property
    def instruction_count(self) -> int:
        """Instructions as XLA's text lists them: get-tuple-element, which it does not print, left out."""
        return self._index.counts.total() - self._index.counts["get-tuple-element"]

    @property
    def opcode_counts(self) -> Mapping[str, int]:
        """Instructions by opcode, get-tuple-element included."""
        return self._index.counts

    def nested_fusions(self, computation_id: int) -> Sequence[Computation]:
        """The bodies of the fusions that stand in a computation, in its order."""
        return self._index.nested.get(computation_id, ())

    def opcodes_in(self, computation_id: int) -> frozenset[str]:
        """The opcodes in a computation and in the fusions nested in it."""
        return self._index.opcodes[computation_id]

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
        known = self._callers.get(computation.id)
        if known is None:
            known = self._callers[computation.id] = tuple(self._index.calls.get(computation.id, ()))
        return known

    @cached_property
    def trip_counts(self) -> Mapping[int, int | None]:
        """Trips of every `while`, by instruction id; None where they cannot be derived."""
        return {i.id: trip_count(i) for i in self._of_opcode("while")}

    def _of_opcode(self, opcode: str) -> Iterator[Instruction]:
        """Every instruction of an opcode; computations without any are not looked into."""
        for computation in self.computations:
            if opcode in self._index.opcodes[computation.id]:
                yield from (i for i in computation.instructions if i.opcode == opcode)

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
        """How often a caller, whose computation runs so often, runs what it calls."""
        opcode = caller.opcode
        if opcode in ("async-update", "async-done"):
            return 0  # older modules name the computation here again; its start has counted it
        if runs is None or opcode == "conditional":
            return None
        if opcode != "while":
            return runs
        trips = self.trip_counts[caller.id]
        if trips is None:
            return None
        is_body = caller.called_computations[0] is callee
        return runs * (trips if is_body else trips + 1)

    @cached_property
    def control_computations(self) -> tuple[Computation, ...]:
        """Computations whose instructions run one by one: the entry, loop conditions and bodies, branches,
        calls and asynchronous computations; not the bodies of fusions, reducers, comparators and the like.

        Every piece of work of a step stands in exactly one of them. Callees stand before callers, and in the order
        in which they are called: a module's text and its message may list computations in different orders.
        """
        ordered: dict[int, Computation] = {}
        # A stack of our own: computations may nest deeper than Python's.
        stack = [(self.entry, self._run_by(self.entry))]
        while stack:
            computation, callees = stack[-1]
            callee = next(callees, None)
            if callee is None:
                ordered[computation.id] = computation
                stack.pop()
            elif callee.id not in ordered:
                stack.append((callee, self._run_by(callee)))
        return tuple(ordered.values())

    def _run_by(self, computation: Computation) -> Iterator[Computation]:
        """The computations that a computation runs, instruction by instruction; none is among its callers."""
        if _CONTROL_OPCODES.isdisjoint(self._index.opcodes[computation.id]):
            return iter(())
        callers = (i for i in computation.instructions if i.opcode in _CONTROL_OPCODES)
        return (callee for caller in callers for callee in caller.called_computations)

    def graph(self) -> nx.DiGraph[str]:
        """The data flow as a networkx graph of instruction names.

        Edges run from operand to user (`kind="operand"`), from predecessor to successor (`"control"`)
        and from caller to a called computation's root (`"calls"`). Nodes carry `instruction`.
        """
        from hloscope.hlo.graph import module_graph

        return module_graph(self)

    @overload
    def find(self, name: str) -> Instruction | None: ...
    @overload
    def find(
        self, *, opcode: str | None = ..., shape: str | Shape | None = ..., op_name: str | None = ...
    ) -> tuple[Instruction, ...]: ...
    def find(
        self,
        name: str | None = None,
        *,
        opcode: str | None = None,
        shape: str | Shape | None = None,
        op_name: str | None = None,
    ) -> Instruction | tuple[Instruction, ...] | None:
        """The instruction of that name (with or without `%`), or None; else all that fit, in the module's order.

        `shape` is the result's, without layout as in `bf16[8,128]` or a `Shape` with one; `op_name` is any part of
        the path in the user's program.

        Examples:
            >>> import hloscope as hs
            >>> module = hs.load("tests/data/qwen3_0p6b_dense.hlo.pb.gz").module
            >>> len(module.find(opcode="fusion", shape="bf16[8192,128]"))
            3
            >>> module.find("%fusion.264").opcode
            'fusion'
        """
        if name is not None:
            return self._by_name.get(name.removeprefix("%"))
        found = self.instructions if opcode is None else self._of_opcode(opcode)
        return tuple(
            i
            for i in found
            if (shape is None or shape == (i.shape.short if isinstance(shape, str) else i.shape))
            and (op_name is None or op_name in i.op_name)
        )

    def __repr__(self) -> str:
        order = "scheduled" if self.is_scheduled else "not scheduled"
        return f"Module({self.name}, {self.instruction_count:,} instructions, {order})"

    def _repr_html_(self) -> str:
        return drawn(self, "module_table")

    @cached_property
    def _by_name(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions}
