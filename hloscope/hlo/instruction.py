"""Instructions and computations: read-only views of the protos, decoded where they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from hloscope.errors import UserError
from hloscope.hlo.replica_groups import ReplicaGroups, decode_replica_groups
from hloscope.hlo.shape import Shape
from hloscope.hlo.source import SourceFrame

if TYPE_CHECKING:
    from hloscope.hlo import protos
    from hloscope.hlo.module import Module


class Instruction:
    """One HLO instruction. Equal only to itself; what is not wrapped here is on `proto` (do not change it)."""

    __slots__ = ("_computation", "_id", "_name", "_opcode", "_operands", "_pairs", "_proto", "_shape")

    def __init__(self, proto: protos.Instruction, computation: Computation) -> None:
        self._proto = proto
        self._computation = computation
        self._name = proto.name
        self._opcode = proto.opcode
        self._id = proto.id
        self._shape: Shape | None = None
        self._operands: tuple[Instruction, ...] | None = None
        self._pairs: tuple[tuple[int, int], ...] | None = None

    @property
    def name(self) -> str:
        """The instruction's name, without `%`."""
        return self._name

    @property
    def opcode(self) -> str:
        """XLA's opcode, e.g. `fusion`, `custom-call`, `all-gather-start`."""
        return self._opcode

    @property
    def id(self) -> int:
        """The instruction's id, unique in its module."""
        return self._id

    @property
    def proto(self) -> protos.Instruction:
        """The message itself, for fields that have no property here."""
        return self._proto

    @property
    def computation(self) -> Computation:
        """The computation that holds this instruction."""
        return self._computation

    @property
    def module(self) -> Module:
        """The module that holds this instruction."""
        return self._computation.module

    @property
    def shape(self) -> Shape:
        """The result's shape, with layout."""
        if self._shape is None:
            self._shape = self.module.intern_shape(self._proto.shape)
        return self._shape

    @property
    def operands(self) -> tuple[Instruction, ...]:
        """The operands, in order."""
        if self._operands is None:
            by_id = self._computation.by_id
            # A list first: quicker than a generator, and this is asked of every instruction.
            self._operands = tuple([by_id[i] for i in self._proto.operand_ids])
        return self._operands

    @property
    def users(self) -> tuple[Instruction, ...]:
        """The instructions of the same computation that take this one as an operand, each once."""
        return self._computation.users_of(self)

    @property
    def called_computations(self) -> tuple[Computation, ...]:
        """Computations that this instruction calls: fusion bodies, loop conditions and bodies, reducers."""
        by_id = self.module.computations_by_id
        return tuple([by_id[i] for i in self._proto.called_computation_ids])

    @property
    def is_root(self) -> bool:
        """Whether this is its computation's result."""
        return self._computation.proto.root_id == self._id

    @property
    def op_name(self) -> str:
        """The path in the user's program, e.g. `jit(step)/transpose(jvp())/while/body/mul`; may be empty."""
        return self._proto.metadata.op_name

    @property
    def frames(self) -> tuple[SourceFrame, ...]:
        """The user's stack at this operation, innermost first; empty where the compiler kept none."""
        meta = self._proto.metadata
        if meta.stack_frame_id:
            return self.module.stack_frames.frames(meta.stack_frame_id)
        return (SourceFrame(meta.source_file, meta.source_line, ""),) if meta.source_file else ()

    @property
    def source(self) -> SourceFrame | None:
        """The innermost frame that is not inside jax itself, or None."""
        frame = self._proto.metadata.stack_frame_id
        if frame:
            return self.module.stack_frames.user_frame(frame)
        return next(iter(self.frames), None)

    @property
    def fusion_kind(self) -> str | None:
        """`kLoop`, `kInput`, `kOutput` or `kCustom` of a fusion; None of anything else."""
        return self._proto.fusion_kind or None

    @property
    def custom_call_target(self) -> str | None:
        """The target of a custom-call; None of anything else."""
        return self._proto.custom_call_target or None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The `dimensions` attribute of a broadcast, reduce, collective and the like."""
        return tuple(self._proto.dimensions)

    @property
    def parameter_number(self) -> int | None:
        """Which parameter of its computation this is; None unless it is one."""
        return self._proto.parameter_number if self._opcode == "parameter" else None

    @property
    def tuple_index(self) -> int | None:
        """Which element a get-tuple-element takes; None of anything else."""
        return self._proto.tuple_index if self._opcode == "get-tuple-element" else None

    @property
    def replica_groups(self) -> ReplicaGroups | None:
        """The devices that a collective joins; None where it names none."""
        return decode_replica_groups(self._proto)

    @property
    def source_target_pairs(self) -> tuple[tuple[int, int], ...]:
        """From which device to which a `collective-permute` sends; empty of anything else."""
        if self._pairs is None:
            self._pairs = tuple((p.source, p.target) for p in self._proto.source_target_pairs)
        return self._pairs

    @property
    def execution_thread(self) -> str | None:
        """The thread of an asynchronous start, e.g. `sparsecore`; None for the main one."""
        return self._proto.async_execution_thread or None

    @property
    def backend_config(self) -> Mapping[str, Any]:
        """The backend's configuration where it is a JSON object; empty where it is absent or anything else."""
        raw = self._proto.backend_config
        if not raw.startswith(b"{"):
            return {}
        try:
            config = json.loads(raw)
        except (ValueError, RecursionError):
            return {}
        return cast("Mapping[str, Any]", config) if isinstance(config, dict) else {}

    @property
    def frontend_attributes(self) -> Mapping[str, str]:
        """Attributes that the frontend attached, e.g. `ragged_dot_tiling`."""
        return dict(self._proto.frontend_attributes.map)

    def __repr__(self) -> str:
        operands = ", ".join("%" + o.name for o in self.operands)
        return f"%{self._name} = {self.shape} {self._opcode}({operands})"


class Computation:
    """One HLO computation: the entry, a fusion's body, a loop's body or condition, a reducer, ..."""

    __slots__ = ("_by_id", "_instructions", "_module", "_proto", "_users")

    def __init__(self, proto: protos.Computation, module: Module) -> None:
        self._proto = proto
        self._module = module
        self._instructions: tuple[Instruction, ...] | None = None
        self._by_id: dict[int, Instruction] | None = None
        self._users: dict[int, tuple[Instruction, ...]] | None = None

    @property
    def name(self) -> str:
        """The computation's name, without `%`."""
        return self._proto.name

    @property
    def id(self) -> int:
        """The computation's id, unique in its module."""
        return self._proto.id

    @property
    def proto(self) -> protos.Computation:
        """The message itself (do not change it)."""
        return self._proto

    @property
    def module(self) -> Module:
        """The module that holds this computation."""
        return self._module

    @property
    def is_fusion(self) -> bool:
        """Whether this is the body of a fusion, so that its instructions have no buffers of their own."""
        return self._proto.is_fusion_computation

    @property
    def execution_thread(self) -> str | None:
        """The thread that runs this computation, e.g. `sparsecore`; None for the main one."""
        thread = self._proto.execution_thread
        return thread if thread and thread != "main" else None

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """Every instruction, operands before users."""
        if self._instructions is None:
            self._instructions = tuple([Instruction(p, self) for p in self._proto.instructions])
        return self._instructions

    @property
    def by_id(self) -> Mapping[int, Instruction]:
        """Instructions by id."""
        if self._by_id is None:
            self._by_id = {i.id: i for i in self.instructions}
        return self._by_id

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's result."""
        last = self.instructions[-1]
        return last if last.id == self._proto.root_id else self.by_id[self._proto.root_id]

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters, in order of their numbers."""
        found = (i for i in self.instructions if i.opcode == "parameter")
        return tuple(sorted(found, key=lambda i: i.proto.parameter_number))

    @property
    def callers(self) -> tuple[Instruction, ...]:
        """The instructions that call this computation."""
        return self._module.callers_of(self)

    @property
    def schedule(self) -> tuple[Instruction, ...]:
        """The instructions in the order in which they run; in proto order where the module is not scheduled."""
        sequences = self._module.proto.schedule.sequences
        if self._proto.id not in sequences:
            return self.instructions
        by_id = self.by_id
        ids = sequences[self._proto.id].instruction_ids
        if not by_id.keys() >= set(ids):
            raise UserError(f"the schedule of %{self.name} names instructions it lacks: the file is damaged")
        return tuple(by_id[i] for i in ids)

    def users_of(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions of this computation that take `instruction` as an operand, each once."""
        if self._users is None:
            users: dict[int, dict[int, Instruction]] = {}
            for user in self.instructions:
                for operand in user.proto.operand_ids:
                    users.setdefault(operand, {})[user.id] = user
            self._users = {i: tuple(found.values()) for i, found in users.items()}
        return self._users.get(instruction.id, ())

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        return f"%{self.name} ({len(self._proto.instructions)} instructions)"
