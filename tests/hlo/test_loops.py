"""Trip counts: what cannot be derived is unknown, and nothing takes for ever."""

from __future__ import annotations

import time

from hloscope.hlo import Module, protos


def instruction(name: str, number: int, opcode: str, *operands: int, **fields: object) -> protos.Instruction:
    return protos.Instruction(
        name=name,
        id=number,
        opcode=opcode,
        operand_ids=operands,
        shape=fields.pop("shape", scalar()),
        **fields,
    )


def scalar(kind: int = 4) -> bytes:
    return protos.Shape(element_type=kind).SerializeToString()


def state() -> bytes:
    return protos.Shape(element_type=13, tuple_shapes=[protos.Shape(element_type=4)]).SerializeToString()


def loop(doublings: int, step: int = 1, bound: int = 12) -> Module:
    """`for i = 0; i + i + ... < bound; i += step`, with i doubled so many times in the condition."""
    condition = [
        instruction("s", 1, "parameter", shape=state()),
        instruction("x", 2, "get-tuple-element", 1),
        *(instruction(f"x{n}", 3 + n, "add", 2 + n, 2 + n) for n in range(doublings)),
        instruction("bound", 900, "constant", literal=protos.Literal(s32s=[bound])),
        instruction("less", 901, "compare", 2 + doublings, 900, comparison_direction="LT", shape=scalar(1)),
    ]
    body = [
        instruction("t", 1001, "parameter", shape=state()),
        instruction("i", 1002, "get-tuple-element", 1001),
        instruction("one", 1003, "constant", literal=protos.Literal(s32s=[step])),
        instruction("next", 1004, "add", 1002, 1003),
        instruction("out", 1005, "tuple", 1004, shape=state()),
    ]
    entry = [
        instruction("zero", 2001, "constant", literal=protos.Literal(s32s=[0])),
        instruction("start", 2002, "tuple", 2001, shape=state()),
        instruction("loop", 2003, "while", 2002, shape=state(), called_computation_ids=[2, 1]),
    ]
    computations = [
        protos.Computation(name="condition", id=1, root_id=901, instructions=condition),
        protos.Computation(name="body", id=2, root_id=1005, instructions=body),
        protos.Computation(name="main", id=3, root_id=2003, instructions=entry),
    ]
    return Module(protos.HloModuleProto(name="m", computations=computations, entry_computation_id=3))


def test_a_counted_loop():
    assert list(loop(0).trip_counts.values()) == [12]
    assert list(loop(0, step=5).trip_counts.values()) == [3]
    assert list(loop(0, bound=-1).trip_counts.values()) == [0]


def test_a_loop_that_never_ends_is_unknown():
    assert list(loop(0, step=0).trip_counts.values()) == [None]


def test_what_is_not_linear_is_unknown_and_each_value_is_looked_at_once():
    began = time.monotonic()
    module = loop(50)
    assert list(module.trip_counts.values()) == [None]
    assert module.executions(module.computations_by_id[2]) is None
    # Without memory of what was seen this would be 2^50 steps.
    assert time.monotonic() - began < 5
