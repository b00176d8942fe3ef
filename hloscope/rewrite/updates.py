"""Gradients that a loop over layers stacks only for an optimizer to read them once: could each trip update its layer?

Behind the loop the optimizer computes, slot by slot, new parameters and moments from the gradients, the old ones and
numbers. Where all of that keeps the layers apart (`slots.py`), and no result of it goes into another layer, it can be
done in the loop, right when a layer's gradient is there. Then the stack of gradients is never made, and the new values
take the places of the old ones, one layer after the other.
"""

# Jaxprs have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hloscope.rewrite import jaxprs
from hloscope.rewrite.leaves import Leaf
from hloscope.rewrite.order import operands, reached_from
from hloscope.rewrite.slots import one_slot, slot_sharding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """What an optimizer does with gradients that a loop stacks, as far as it hangs together.

    Attributes:
      scan: the loop.
      gradients: its results that are the gradients.
      equations: the update, in order; `before` among them those that do not depend on the loop.
      places: each result of the update, and the donated argument whose place it takes.
      leaves: those arguments, as the step's caller names them.
      layouts: of gradients with the shape of such an argument, how one slot of it is laid out.
      refusal: why it must stay behind the loop; None if it can go inside.
      where: `file:line` of what the refusal is about, else of the update.
    """

    scan: Any
    gradients: tuple[Any, ...]
    equations: tuple[Any, ...]
    places: Mapping[Any, Any]
    leaves: tuple[Leaf, ...]
    layouts: Mapping[Any, Any]
    refusal: str | None
    where: str | None

    @property
    def parameter(self) -> str:
        """The parameter: the first of the arguments that it replaces which the loop reads, else the first."""
        return self.leaves[0].name

    @property
    def proof(self) -> tuple[str, ...]:
        """Why it may go into the loop, or what keeps it behind it, in lines."""
        loop = f"its gradient is stacked by a loop of {self.scan.params['length']} trips" + _place(
            jaxprs.source_line(self.scan)
        )
        if self.refusal is not None:
            return (loop, f"{self.refusal}{_place(self.where)}")
        names = ", ".join(leaf.name for leaf in self.leaves)
        return (
            loop,
            f"only the update reads it: {len(self.equations)} operations that keep layers apart{_place(self.where)}",
            f"the new values take the places of {names}, layer by layer: nobody reads the old ones after the loop",
        )


def _place(where: str | None) -> str:
    return f"  ({where})" if where else ""


def find_updates(body: Any, leaves: Sequence[Leaf]) -> list[Update]:
    """The updates behind every loop of a flat step; `leaves` are its arguments, in the order of its inputs.

    Only gradients that look like an argument that is replaced are told of when they are refused.
    """
    program = _Program.of(body, leaves)
    loops = [e for e in body.eqns if e.primitive.name == "scan" and e.params["length"] > 0]
    return [u for loop in loops for u in _Finder.of(program, loop).updates()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Program:
    body: Any
    leaf: Mapping[Any, Leaf]
    replaced: Mapping[Any, Any]  # a result to the donated argument whose memory jax gives it
    makers: Mapping[Any, Any]
    readers: Mapping[Any, list[Any]]
    results: frozenset[Any]

    @classmethod
    def of(cls, body: Any, leaves: Sequence[Leaf]) -> _Program:
        readers: dict[Any, list[Any]] = defaultdict(list)
        for equation in body.eqns:
            for var in dict.fromkeys(operands(equation)):
                readers[var].append(equation)
        return cls(
            body=body,
            leaf=dict(zip(body.invars, leaves, strict=True)),
            replaced=_replaced(body, leaves),
            makers={var: equation for equation in body.eqns for var in equation.outvars},
            readers=readers,
            results=frozenset(atom for atom in body.outvars if not jaxprs.is_literal(atom)),
        )


def _replaced(body: Any, leaves: Sequence[Leaf]) -> dict[Any, Any]:
    """As jax pairs donated arguments with results: the first of a type with the first of that type."""
    given: dict[Any, deque[Any]] = defaultdict(deque)
    for var, leaf in zip(body.invars, leaves, strict=True):
        if leaf.donated:
            given[_kind(var)].append(var)
    pairs: dict[Any, Any] = {}
    for atom in body.outvars:
        waiting = given[_kind(atom)]
        if waiting:
            argument = waiting.popleft()
            if not jaxprs.is_literal(atom):
                pairs.setdefault(atom, argument)
    return pairs


def _kind(atom: Any) -> tuple[Any, Any]:
    return tuple(atom.aval.shape), atom.aval.dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Finder:
    program: _Program
    scan: Any
    length: int
    stacks: tuple[Any, ...]
    behind: frozenset[int]  # ids of the equations that need the loop, it included
    forward: Mapping[int, Any]  # those of them that keep slots apart and need nothing else behind it

    @classmethod
    def of(cls, program: _Program, scan: Any) -> _Finder:
        _, carried = jaxprs.scan_counts(scan)
        stacks = tuple(var for var in scan.outvars[carried:] if not jaxprs.is_dropped(var))
        length = scan.params["length"]
        behind = frozenset(reached_from(scan, program.body.eqns))
        return cls(
            program=program,
            scan=scan,
            length=length,
            stacks=stacks,
            behind=behind,
            forward=_forward(program, stacks, length, behind),
        )

    def updates(self) -> Iterator[Update]:
        wanted = [var for var in self.stacks if self._is_gradient(var)]
        while wanted:
            gradients, reached = self._together(wanted[0], wanted)
            wanted = [var for var in wanted if var not in gradients]
            yield self._update(gradients, reached)

    def _is_gradient(self, var: Any) -> bool:
        """Whether it has the shape of an argument that is replaced, and not only loops read it, as they do what the
        forward pass saves."""
        like = any(var.aval.shape == other.aval.shape for other in self.program.replaced.values())
        readers = self.program.readers.get(var, ())
        return like and any(reader.primitive.name not in jaxprs.SCOPES for reader in readers)

    def _together(self, first: Any, wanted: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The gradients that share an update with the first, what else of the loop's stacks it reads (a norm of each
        layer's gradient, say), and the equations that they reach."""
        gradients: list[Any] = [first]
        reached, grown = self._reached([first]), True
        while grown:
            shared = [v for v in wanted if not reached.keys().isdisjoint(self._reached([v]))]
            more = [v for v in (*shared, *self._needed(reached)) if v not in gradients]
            grown = bool(more)
            gradients += dict.fromkeys(more)
            reached = self._reached(gradients)
        return gradients, list(reached.values())

    def _needed(self, reached: Mapping[int, Any]) -> list[Any]:
        """The loop's stacks that equations behind it are computed from, slot by slot."""
        pending = [atom for equation in reached.values() for atom in operands(equation)]
        seen: set[Any] = set()
        while pending:
            atom = pending.pop()
            maker = self.program.makers.get(atom)
            if atom not in seen and maker is not None and id(maker) in self.forward:
                pending += operands(maker)
            seen.add(atom)
        return [v for v in self.stacks if v in seen]

    def _reached(self, stacks: Sequence[Any]) -> dict[int, Any]:
        known = set(stacks)
        found: dict[int, Any] = {}
        for key, equation in self.forward.items():
            if not known.isdisjoint(operands(equation)):
                found[key] = equation
                known.update(equation.outvars)
        return found

    def _update(self, gradients: list[Any], reached: list[Any]) -> Update:
        inside = {id(equation) for equation in reached}
        results = [
            var
            for equation in reached
            for var in equation.outvars
            if var in self.program.results
            or any(id(reader) not in inside for reader in self.program.readers.get(var, ()))
        ]
        places = {var: self.program.replaced[var] for var in results if var in self.program.replaced}
        before = self._before(reached)
        refused = self._refusal(gradients, reached, results, places, before)
        why, where = refused or (None, jaxprs.source_line(reached[0]) if reached else None)
        arguments = self._parameter_first(places)
        leaves = tuple(self.program.leaf[var] for var in arguments)
        return Update(
            scan=self.scan,
            gradients=tuple(gradients),
            equations=(*before, *reached),
            places=places,
            leaves=leaves or self._alike(gradients[0]),
            layouts=self._layouts(gradients, arguments),
            refusal=why,
            where=where,
        )

    def _layouts(self, gradients: Sequence[Any], arguments: Sequence[Any]) -> dict[Any, Any]:
        """A gradient has the layout of the first argument of its shape; numbers for each layer have none to take."""
        shardings = {a.aval.shape: self.program.leaf[a].sharding for a in reversed(arguments)}
        known = {g: shardings.get(g.aval.shape) for g in gradients}
        return {g: slot_sharding(sharding) for g, sharding in known.items() if sharding is not None}

    def _parameter_first(self, places: Mapping[Any, Any]) -> list[Any]:
        """The arguments of an update in the order of the step's, what the loop itself reads before its moments."""
        taken, read = set(places.values()), set(operands(self.scan))
        return sorted(
            (var for var in self.program.body.invars if var in taken), key=lambda var: var not in read
        )

    def _alike(self, gradient: Any) -> tuple[Leaf, ...]:
        """For a name: the arguments that the gradient looks like, those that the loop reads first."""
        like = {a: a for a in self.program.replaced.values() if a.aval.shape == gradient.aval.shape}
        return tuple(self.program.leaf[a] for a in self._parameter_first(like))

    def _before(self, reached: Sequence[Any]) -> list[Any]:
        """Work on whole stacks that the update reads and that is not behind the loop: it is done slot by slot too."""
        found: dict[int, Any] = {}
        pending = list(reached)
        while pending:
            for var in self._stacks_read(pending.pop()):
                maker = self.program.makers.get(var)
                if maker is None or id(maker) in self.behind or id(maker) in found:
                    continue
                if one_slot(maker, self.length) is not None:
                    found[id(maker)] = maker
                    pending.append(maker)
        return [equation for equation in self.program.body.eqns if id(equation) in found]

    def _stacks_read(self, equation: Any) -> list[Any]:
        slot = one_slot(equation, self.length)
        assert slot is not None
        pairs = zip(equation.invars, slot.stacks, strict=True)
        return [atom for atom, is_stack in pairs if is_stack and not jaxprs.is_literal(atom)]

    def _refusal(
        self,
        gradients: Sequence[Any],
        reached: Sequence[Any],
        results: Sequence[Any],
        places: Mapping[Any, Any],
        before: Sequence[Any],
    ) -> tuple[str, str | None] | None:
        inside = {id(equation) for equation in reached}
        for var in gradients:
            if var in self.program.results:
                return "the gradient itself is a result of the step", None
            for reader in self.program.readers[var]:
                if id(reader) not in inside:
                    return f"{reader.primitive.name} {self._why_not(reader)}", jaxprs.source_line(reader)
        for var in results:
            if var not in places:
                maker = self.program.makers[var]
                why = (
                    "what is computed of a gradient goes elsewhere than into a donated argument of its shape"
                )
                return why, jaxprs.source_line(maker)
        read = {var for equation in (*before, *reached) for var in self._stacks_read(equation)}
        for argument in places.values():
            refused = self._cannot_hold(argument, read, {id(e) for e in (*before, *reached)})
            if refused is not None:
                return refused
        return None

    def _why_not(self, reader: Any) -> str:
        if one_slot(reader, self.length) is None:
            return "reads the gradients of all layers together, or is not known not to"
        return "reads another value for which the gradients of all layers must be there"

    def _cannot_hold(self, argument: Any, read: set[Any], inside: set[int]) -> tuple[str, str | None] | None:
        """Why the new values cannot take the place of an argument while the loop runs."""
        leaf = self.program.leaf[argument]
        if argument not in read:
            return f"the update does not read {leaf.name}, whose place a result of it would take", None
        if argument in self.program.results:
            return f"{leaf.name} is a result of the step as it is", None
        if leaf.sharding is not None and slot_sharding(leaf.sharding) is None:
            return f"the layers of {leaf.name} lie on different devices", None
        consts, carried = jaxprs.scan_counts(self.scan)
        if argument in [atom for atom in self.scan.invars[: consts + carried] if not jaxprs.is_literal(atom)]:
            return f"the loop reads all of {leaf.name} in every trip", jaxprs.source_line(self.scan)
        for reader in self.program.readers[argument]:
            if id(reader) in self.behind - inside and reader is not self.scan:
                return (
                    f"{leaf.name} is read again after the loop, by {reader.primitive.name}",
                    jaxprs.source_line(reader),
                )
        return None


def _forward(program: _Program, stacks: Sequence[Any], length: int, behind: frozenset[int]) -> dict[int, Any]:
    """Equations behind a loop that work slot by slot, on its stacks and on what is not behind it."""
    apart, found = set(stacks), dict[int, Any]()
    for equation in program.body.eqns:
        slot = one_slot(equation, length) if id(equation) in behind else None
        if slot is None:
            continue
        pairs = list(zip(equation.invars, slot.stacks, strict=True))
        needs = [(atom, is_stack) for atom, is_stack in pairs if _is_behind(program, atom, behind)]
        if all(is_stack and atom in apart for atom, is_stack in needs):
            found[id(equation)] = equation
            apart.update(equation.outvars)
    return found


def _is_behind(program: _Program, atom: Any, behind: frozenset[int]) -> bool:
    maker = None if jaxprs.is_literal(atom) else program.makers.get(atom)
    return maker is not None and id(maker) in behind
