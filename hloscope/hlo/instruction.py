"""Instructions and computations: read-only views of the protos, decoded where they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final, cast

from hloscope.errors import UserError
from hloscope.hlo.replica_groups import ReplicaGroups, decode_pairs, decode_replica_groups
from hloscope.hlo.shape import Shape
from hloscope.hlo.source import SourceFrame

if TYPE_CHECKING:
    from hloscope.hlo import protos
    from hloscope.hlo.module import Module
    from hloscope.hlo.neighbourhood import Neighbourhood

# What most of a module is; a look at a field of each costs.
CALL_NOTHING = frozenset({
    "parameter", "get-tuple-element", "tuple", "bitcast", "broadcast", "convert", "add", "multiply", "subtract",
    "divide", "negate", "exponential", "maximum", "minimum", "compare", "select", "and", "or", "slice", "pad",
    "reshape", "transpose", "iota", "copy", "copy-start", "copy-done", "dot", "convolution", "dynamic-slice",
})  # fmt: skip


class Instruction:
    """One HLO instruction. Equal only to itself; read-only, as is `proto`, which has what is not wrapped here."""

    __slots__ = (
        "_name",
        "_op_name",
        "called_computations",
        "computation",
        "id",
        "module",
        "opcode",
        "operands",
        "proto",
        "shape",
        "source_target_pairs",
        "users",
    )

    # Plain attributes, not properties: a million instructions are asked for these many times.
    proto: Final[protos.Instruction]
    """The message itself, for fields that have no property here."""
    computation: Final[Computation]
    """The computation that holds this instruction."""
    module: Final[Module]
    """The module that holds this instruction."""
    id: Final[int]
    """The instruction's id, unique in its module."""
    opcode: Final[str]
    """XLA's opcode, e.g. `fusion`, `custom-call`, `all-gather-start`."""
    operands: Final[tuple[Instruction, ...]]
    """The operands, in order."""
    called_computations: Final[tuple[Computation, ...]]
    """Computations that this instruction calls: fusion bodies, loop conditions and bodies, reducers."""
    shape: Final[Shape]
    """The result's shape, with layout; equal shapes of one module are one object."""

    # Worked out when first asked for (`__getattr__`), and plain attributes from then on.
    users: tuple[Instruction, ...]
    """The instructions of the same computation that take this one as an operand, each once."""
    source_target_pairs: tuple[tuple[int, int], ...]
    """From which device to which a `collective-permute` sends; empty of anything else."""

    def __init__(
        self,
        proto: protos.Instruction,
        computation: Computation,
        before: Callable[[int], Instruction],
        callee: Callable[[int], Computation],
    ) -> None:
        """`before` finds the instructions above this one by id, `callee` the computations; KeyError for any other id.

        Raises UserError where it refers to anything else.
        """
        self.proto = proto
        self.computation = computation
        self.module = module = computation.module
        self.id = proto.id
        self.opcode = opcode = intern(proto.opcode)
        self.shape = module.shapes[proto.shape]
        # Slices: to iterate over a repeated field is a call for each item, and an exception at its end.
        try:
            self.operands = tuple(map(before, proto.operand_ids[:]))
        except KeyError:
            raise UserError(
                f"%{proto.name} has an operand that does not come before it: the file is damaged"
            ) from None
        try:
            # Callees come first in a sound module, so this also rules out cycles of calls.
            self.called_computations = (
                () if opcode in CALL_NOTHING else tuple(map(callee, proto.called_computation_ids[:]))
            )
        except KeyError:
            raise UserError(
                f"%{proto.name} calls a computation that does not come before it: the file is damaged"
            ) from None
        self._name: str | None = None
        self._op_name: str | None = None

    @property
    def name(self) -> str:
        """The instruction's name, without `%`."""
        if self._name is None:
            self._name = self.proto.name
        return self._name

    @property
    def op_name(self) -> str:
        """The path in the user's program, e.g. `jit(step)/transpose(jvp())/while/body/mul`; may be empty."""
        if self._op_name is None:
            self._op_name = intern(self.proto.metadata.op_name)
        return self._op_name

    if not TYPE_CHECKING:  # a checker would take it for leave to ask for any name

        def __getattr__(self, field: str) -> object:
            """Work out an attribute that has no value yet."""
            match field:
                case "users":
                    self.computation.tell_users()
                    return self.users
                case "source_target_pairs":
                    value = decode_pairs(tuple(self.proto.source_target_pairs[:]))
                case _:
                    raise AttributeError(f"an instruction has no {field!r}", name=field, obj=self)
            setattr(self, field, value)
            return value

    @property
    def is_root(self) -> bool:
        """Whether this is its computation's result."""
        return self.computation.root is self

    @property
    def frames(self) -> tuple[SourceFrame, ...]:
        """The user's stack at this operation, innermost first; empty where the compiler kept none."""
        meta = self.proto.metadata
        if meta.stack_frame_id:
            return self.module.stack_frames.frames(meta.stack_frame_id)
        return (SourceFrame(meta.source_file, meta.source_line, ""),) if meta.source_file else ()

    @property
    def source(self) -> SourceFrame | None:
        """The innermost frame in the user's own code, not inside jax or hloscope, or None."""
        frame = self.proto.metadata.stack_frame_id
        if frame:
            return self.module.stack_frames.user_frame(frame)
        return next(iter(self.frames), None)

    @property
    def fusion_kind(self) -> str | None:
        """`kLoop`, `kInput`, `kOutput` or `kCustom` of a fusion; None of anything else."""
        return (self.proto.fusion_kind or None) if self.opcode == "fusion" else None

    @property
    def custom_call_target(self) -> str | None:
        """The target of a custom-call; None of anything else."""
        return (self.proto.custom_call_target or None) if self.opcode == "custom-call" else None

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The `dimensions` attribute of a broadcast, reduce, collective and the like."""
        return tuple(self.proto.dimensions[:])

    @property
    def parameter_number(self) -> int | None:
        """Which parameter of its computation this is; None unless it is one."""
        return self.proto.parameter_number if self.opcode == "parameter" else None

    @property
    def tuple_index(self) -> int | None:
        """Which element a get-tuple-element takes; None of anything else."""
        return self.proto.tuple_index if self.opcode == "get-tuple-element" else None

    @property
    def replica_groups(self) -> ReplicaGroups | None:
        """The devices that a collective joins; None where it names none."""
        return decode_replica_groups(self.proto)

    @property
    def execution_thread(self) -> str | None:
        """The thread of an asynchronous start, e.g. `sparsecore`; None for the main one."""
        is_asynchronous = self.opcode.startswith("async-")
        return (self.proto.async_execution_thread or None) if is_asynchronous else None

    @property
    def backend_config(self) -> Mapping[str, Any]:
        """The backend's configuration where it is a JSON object; empty where it is absent or anything else."""
        raw = self.proto.backend_config
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
        return dict(self.proto.frontend_attributes.map)

    def neighbourhood(self, hops: int = 2) -> Neighbourhood:
        """What is at most `hops` edges away: what it reads, what reads it, what it calls and is called by.

        Examples:
            >>> import hloscope as hs
            >>> module = hs.load("tests/data/qwen3_0p6b_dense.hlo.pb.gz").module
            >>> module.find("fusion.264").neighbourhood(2)
            Neighbourhood(%fusion.264, 10 instructions within 2 steps)
        """
        from hloscope.hlo.neighbourhood import neighbourhood

        return neighbourhood(self, hops)

    def __repr__(self) -> str:
        operands = ", ".join("%" + o.name for o in self.operands)
        return f"%{self.name} = {self.shape} {self.opcode}({operands})"


class Computation:
    """One HLO computation: the entry, a fusion's body, a loop's body or condition, a reducer, ..."""

    __slots__ = (
        "_parameters",
        "_scheduled",
        "by_id",
        "execution_thread",
        "id",
        "instructions",
        "module",
        "proto",
        "root",
    )

    proto: Final[protos.Computation]
    """The message itself (do not change it)."""
    module: Final[Module]
    """The module that holds this computation."""
    id: Final[int]
    """The computation's id, unique in its module."""
    instructions: Final[tuple[Instruction, ...]]
    """Every instruction, operands before users: in the order in which they run where the module fixes that, as its
    text lists them."""
    by_id: Final[Mapping[int, Instruction]]
    """Instructions by id."""
    execution_thread: Final[str | None]
    """The thread that runs this computation, e.g. `sparsecore`; None for the main one."""
    root: Final[Instruction]
    """The instruction whose value is the computation's result."""

    def __init__(self, proto: protos.Computation, module: Module, callees: Mapping[int, Computation]) -> None:
        """`callees` are the computations before this one, by id. Raises UserError where it is not sound."""
        self.proto = proto
        self.module = module
        self.id = proto.id
        thread = proto.execution_thread
        self.execution_thread = thread if thread and thread != "main" else None
        messages = proto.instructions[:]
        by_id: dict[int, Instruction] = {}
        before, callee = by_id.__getitem__, callees.__getitem__
        for message in messages:
            instruction = Instruction(message, self, before, callee)
            by_id[instruction.id] = instruction
        if proto.root_id not in by_id or len(by_id) != len(messages):
            raise UserError(f"computation {proto.name!r} has no root or two instructions with one id")
        self.by_id = by_id
        sequences = module.sequences
        self._scheduled = (
            _in_schedule_order(by_id, sequences[self.id].instruction_ids[:]) if self.id in sequences else None
        )
        self.instructions = self._scheduled or tuple(by_id.values())
        self.root = by_id[proto.root_id]
        self._parameters: tuple[Instruction, ...] | None = None

    @property
    def name(self) -> str:
        """The computation's name, without `%`."""
        return self.proto.name

    @property
    def is_fusion(self) -> bool:
        """Whether this is the body of a fusion, so that its instructions have no buffers of their own."""
        return self.proto.is_fusion_computation

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameters, in order of their numbers."""
        if self._parameters is None:
            found = [(i.proto.parameter_number, i) for i in self.instructions if i.opcode == "parameter"]
            self._parameters = tuple([i for _, i in sorted(found, key=itemgetter(0))])
        return self._parameters

    @property
    def callers(self) -> tuple[Instruction, ...]:
        """The instructions that call this computation."""
        return self.module.callers_of(self)

    @property
    def schedule(self) -> tuple[Instruction, ...]:
        """The instructions in the order in which they run; in proto order where the module is not scheduled."""
        if self._scheduled is not None:
            return self._scheduled
        sequences = self.module.sequences
        if self.id not in sequences:
            return self.instructions
        by_id = self.by_id
        ids = sequences[self.id].instruction_ids[:]
        if not by_id.keys() >= set(ids):
            raise UserError(f"the schedule of %{self.name} names instructions it lacks: the file is damaged")
        return tuple(by_id[i] for i in ids)

    def tell_users(self) -> None:
        """Set `users` of every instruction: all at once, as each is found at those that it uses."""
        users: dict[int, list[Instruction]] = {number: [] for number in self.by_id}
        for user in self.instructions:
            for operand in user.operands:
                found = users[operand.id]
                if not found or found[-1] is not user:
                    found.append(user)
        for instruction in self.instructions:
            instruction.users = tuple(users[instruction.id])

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        return f"%{self.name} ({len(self.proto.instructions)} instructions)"


def _in_schedule_order(
    by_id: Mapping[int, Instruction], schedule: Sequence[int]
) -> tuple[Instruction, ...] | None:
    """A computation's instructions as its schedule has them; None where it leaves some out or has one before its
    operands."""
    ordered: dict[int, Instruction] = {}
    for number in schedule:
        instruction = by_id.get(number)
        if instruction is None:
            return None
        for operand in instruction.operands:
            if operand.id not in ordered:
                return None
        ordered[number] = instruction
    return tuple(ordered.values()) if len(ordered) == len(by_id) else None
