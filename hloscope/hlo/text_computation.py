"""Computations and instructions of HLO text.

An instruction gets its id when its name is first met, so operands may come before or after what they name.
`%x#0` takes an element of a tuple: text has no instruction for it, a message does, so one is made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hloscope.hlo import protos
from hloscope.hlo.instruction import CALL_NOTHING
from hloscope.hlo.text_async import unwrap
from hloscope.hlo.text_attributes import CALLS, set_argument, set_attribute
from hloscope.hlo.text_infer import inferred_shape
from hloscope.hlo.text_names import Names
from hloscope.hlo.text_order import order_instructions
from hloscope.hlo.text_scan import INDEX, Scanner, integer
from hloscope.hlo.text_shape import Shapes, shape_end

_NAME = r"[\w.\-]++"
_HEAD = re.compile(rf"\s*+(ROOT\s++)?%?({_NAME})\s*+=\s*+", re.ASCII)
_OPCODE = re.compile(r"\s*+(?!b\()([a-zA-Z][\w\-]*+)\s*+\(", re.ASCII)
_OPERANDS = re.compile(
    rf"\s*+(?:%?+{_NAME}(?:#\d++)*+\s*+(?:,\s*+%?+{_NAME}(?:#\d++)*+\s*+)*+)?+\)", re.ASCII
)
_OPERAND = re.compile(r"[^\s,%()]+")
_ONE_OPERAND = re.compile(rf"\s*+%?+({_NAME}(?:#\d++)*+)\s*+(?=[,)])", re.ASCII)
_BLANK = re.compile(rf"(?:\s++|{INDEX})*+", re.ASCII)
_CLOSE = re.compile(r"\s*+\}")
_COMPUTATION = re.compile(rf"\s*+(ENTRY\s++)?%?({_NAME})\s*+", re.ASCII)
_ARROW = re.compile(r"\s*+->\s*+")
_OPEN = re.compile(r"\s*+\{")
# A computation in the place of its name: `to_apply={ a = f32[] parameter(0) ... }`.
_INLINE = re.compile(rf"\{{\s*+(?:ROOT\s++)?%?{_NAME}\s*+=\s", re.ASCII)
# Text nests by hand: an operand spelt out in place, a computation in an attribute.
_DEEPEST = 20


@dataclass(slots=True)
class _Body:
    """The computation that is being read."""

    proto: protos.Computation
    start: int
    ids: dict[str, int] = field(default_factory=dict[str, int])
    found: dict[int, protos.Instruction] = field(default_factory=dict[int, protos.Instruction])
    waiting: dict[str, int] = field(default_factory=dict[str, int])  # named but not read, and where
    elements: list[tuple[protos.Instruction, int]] = field(
        default_factory=list[tuple[protos.Instruction, int]]
    )
    is_unordered: bool = False


class ComputationReader:
    """Reads computations, one after the other, into a module's message."""

    def __init__(self, scanner: Scanner, module: protos.HloModuleProto) -> None:
        self.scanner = scanner
        self.module = module
        self.shapes = Shapes()
        self.names = Names()
        self.entry: int | None = None
        self.fusion_bodies: set[int] = set()
        self.threads: dict[int, str] = {}  # of computations, as what starts them says
        self._body = _Body(protos.Computation(), 0)
        self._results: dict[int, protos.Instruction] = {}  # what each computation ends in
        self._last = 0
        self._depth = 0

    def next_id(self) -> int:
        """A new instruction id."""
        self._last += 1
        return self._last

    def computation_id(self, name: str) -> int:
        """The id of a computation, given when its name is first met."""
        return self.names.computation(name, self.scanner.at)

    def instruction_id(self, name: str) -> int:
        """The id of an instruction of the present computation, given when its name is first met."""
        body = self._body
        known = body.ids.get(name)
        if known is None:
            if "#" in name:
                return self._element(name)
            known = body.ids[name] = self.next_id()
            body.waiting[name] = self.scanner.at
            body.is_unordered = True
        return known

    def read(self) -> None:
        """Read one computation: `%name (parameters) -> shape { instructions }`."""
        scanner = self.scanner
        start = scanner.blanks()
        head = scanner.expect(_COMPUTATION, "a computation")
        name = head[2]
        if name == "HloModule":
            raise scanner.error("a second module begins here: give every module a file of its own", start)
        number = self.names.define_computation(name)
        if number is None:
            raise scanner.error(f"there are two computations %{name}", start)
        if head[1]:
            if self.entry is not None:
                raise scanner.error("there are two computations marked ENTRY", start)
            self.entry = number
        self._signature()
        scanner.expect(_OPEN, f"the '{{' of %{name}")
        self._read_body(name, number, start)
        for attribute, value, place in scanner.attributes():
            if attribute == "execution_thread":
                if not value.startswith('"'):
                    raise scanner.error("expected a string in quotes", place)
                self._body.proto.execution_thread = value[1:-1]

    def _signature(self) -> None:
        """Go past the parameters and the result: the instructions say the same and more."""
        scanner = self.scanner
        if scanner.text[scanner.at : scanner.at + 1] == "(":
            scanner.at = scanner.group_end(scanner.at)
        if scanner.match(_ARROW):
            self.shapes.read(scanner)

    def _read_body(self, name: str, number: int, start: int) -> None:
        """Read the instructions up to the closing brace."""
        scanner, root, last = self.scanner, 0, 0
        self._body = _Body(self.module.computations.add(name=name, id=number), start)
        while head := scanner.match(_HEAD):
            last = self._instruction(head[2], head.start(2))
            if head[1]:
                if root:
                    raise scanner.error(f"%{name} has two instructions marked ROOT", head.start(1))
                root = last
        scanner.expect(_CLOSE, "an instruction: name = shape opcode(operands)")
        if not last:
            raise scanner.error(f"%{name} has no instructions")
        body = self._body
        body.proto.root_id = root or last
        self._results[number] = body.found[root or last]
        self._finish()

    def _instruction(self, name: str, start: int) -> int:
        """Read what follows `name =`; the id of the instruction."""
        if self._body.ids.get(name) in self._body.found:
            raise self.scanner.error(f"there are two instructions %{name} in this computation", start)
        proto, opcode, shape = self._operation(name, start)
        self._attributes(proto)
        if shape is None:
            self._infer(proto, start)
        if opcode in ("fusion", "fusion-start"):
            self.fusion_bodies.update(proto.called_computation_ids[:])
        if opcode.endswith(("-start", "-update", "-done")):
            try:
                unwrap(self, proto)
                if proto.opcode == "async-start" and proto.async_execution_thread:
                    callees = dict.fromkeys(proto.called_computation_ids, proto.async_execution_thread)
                    self.threads.update(callees)
            except ValueError as error:
                raise self.scanner.error(str(error), start) from error
        return proto.id

    def _operation(
        self, key: str, start: int, *, name: str | None = None
    ) -> tuple[protos.Instruction, str, bytes | None]:
        """Read `shape opcode(operands)` into a new instruction; with it its opcode, and its shape if it has one.

        `name` is for one whose key is none.
        """
        scanner, body = self.scanner, self._body
        given = _OPCODE.match(scanner.text, scanner.at) is None
        shape = self.shapes.read(scanner) if given else None
        opcode = scanner.expect(_OPCODE, "an opcode and its operands")[1]
        operands, argument = self._operands(opcode)
        number = body.ids.get(key) or self.next_id()
        body.ids[key] = number
        body.waiting.pop(key, None)
        proto = body.proto.instructions.add()
        proto.id, proto.name, proto.opcode = number, self.names.instruction(name or key), opcode
        body.found[number] = proto
        if operands:
            proto.operand_ids.extend(operands)
        if shape is not None:
            proto.shape = shape
        try:
            set_argument(self, proto, opcode, argument)
        except ValueError as error:
            raise scanner.error(str(error), start) from error
        return proto, opcode, shape

    def _operands(self, opcode: str) -> tuple[list[int], str]:
        """The ids of the operands; or, of a constant or parameter, what stands in the parentheses."""
        scanner, text, start = self.scanner, self.scanner.text, self.scanner.at
        if opcode in ("constant", "parameter"):
            scanner.at = scanner.group_end(start - 1)
            return [], text[start : scanner.at - 1]
        plain = scanner.match(_OPERANDS)
        if plain:
            return [self.instruction_id(name) for name in _OPERAND.findall(text, start, plain.end())], ""
        found = [self._operand()]
        while scanner.text[scanner.at : scanner.at + 1] == ",":
            scanner.at += 1
            found.append(self._operand())
        if scanner.text[scanner.at : scanner.at + 1] != ")":
            raise scanner.error("expected a comma or the ')' after the operands")
        scanner.at += 1
        return found, ""

    def _operand(self) -> int:
        """An operand with its shape, as older printers write it, or spelt out in place: `f32[] constant(0)`."""
        scanner = self.scanner
        scanner.match(_BLANK)
        start = scanner.at
        scanner.at = shape_end(scanner, start)
        found = scanner.match(_ONE_OPERAND)
        if found:
            return self.instruction_id(found[1])
        if self._depth >= _DEEPEST or not (opcode := _OPCODE.match(scanner.text, scanner.at)):
            raise scanner.error("expected the name of an operand")
        scanner.at = start
        self._depth += 1
        # The key is one that no name in the text can be.
        proto, _, shape = self._operation(f"({start})", start, name=f"{opcode[1]}.anon")
        self._depth -= 1
        if shape is None:
            self._infer(proto, start)
        scanner.match(_BLANK)
        return proto.id

    def _element(self, name: str) -> int:
        """An instruction that takes an element of a tuple, for `%x#0` or `%x#0#1`."""
        source, _, index = name.rpartition("#")
        if source.count("#") >= _DEEPEST:
            raise self.scanner.error("no tuple is nested this deeply")
        operand = self.instruction_id(source)
        number = self._body.ids[name] = self.next_id()
        made = self._body.proto.instructions.add(id=number, name=self.names.instruction(name))
        made.opcode = "get-tuple-element"
        made.operand_ids.append(operand)
        try:
            made.tuple_index = integer(index)
        except ValueError as error:
            raise self.scanner.error(f"%{name} is no element of a tuple: {error}") from error
        self._body.found[number] = made
        if operand in self._body.found:
            self._set_element(made, self.scanner.at)
        else:
            self._body.elements.append((made, self.scanner.at))
        return number

    def _set_element(self, made: protos.Instruction, at: int) -> None:
        shapes = self.shapes.of(self._body.found[made.operand_ids[0]].shape).tuple_shapes
        if made.tuple_index >= len(shapes):
            raise self.scanner.error(f"%{made.name}: there is no such element", at)
        made.shape = shapes[made.tuple_index].SerializeToString()

    def _infer(self, proto: protos.Instruction, start: int) -> None:
        """Give an instruction the shape that its text leaves out."""
        ids, found = proto.operand_ids, self._body.found
        if proto.opcode in ("call", "conditional"):
            ids, found = proto.called_computation_ids, self._results
        known = [self.shapes.of(found[i].shape) for i in ids if i in found]
        shape = inferred_shape(proto, known) if len(known) == len(ids) else None
        if shape is None:
            raise self.scanner.error(f"%{proto.name} needs a shape before its opcode {proto.opcode}", start)
        proto.shape = shape.SerializeToString()

    def _attributes(self, proto: protos.Instruction) -> None:
        for name, value, start in self.scanner.attributes():
            if name in CALLS:
                if proto.opcode in CALL_NOTHING:
                    raise self.scanner.error(f"{name}: {proto.opcode} calls nothing", start)
                if _INLINE.match(value):
                    value = self._inline(proto.name, start)
            try:
                set_attribute(self, proto, name, value)
            except ValueError as error:
                raise self.scanner.error(f"{name}: {error}", start) from error

    def _inline(self, caller: str, start: int) -> str:
        """Read a computation that stands in the place of its name; the name that it gets."""
        if self._depth >= _DEEPEST:
            raise self.scanner.error("computations are nested too deeply", start)
        outer, end = self._body, self.scanner.at
        name = self.names.unused_computation(f"{caller}.computation")
        number = self.names.define_computation(name)
        assert number is not None
        self.scanner.at, self._depth = start + 1, self._depth + 1
        self._read_body(name, number, start)
        self._body, self.scanner.at, self._depth = outer, end, self._depth - 1
        return name

    def _finish(self) -> None:
        """Check that every name was read, give elements their shapes, put operands before users."""
        body = self._body
        for name, at in body.waiting.items():
            raise self.scanner.error(f"there is no instruction %{name} in %{body.proto.name}", at)
        for made, at in body.elements:
            self._set_element(made, at)
        if body.is_unordered:
            try:
                order_instructions(body.proto)
            except ValueError as error:
                raise self.scanner.error(str(error), body.start) from error
