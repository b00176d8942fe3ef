"""How much an instruction computes: matrix operations by rate, vector operations and transcendentals.

Counted in fusion bodies, nested ones included, of what the result needs: a fusion that slices a large value
computes the slice only. Each body is counted once per module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.analysis.costs_matmul import matrix_flops, rate_of
from hloscope.analysis.fusion_use import instruction_use
from hloscope.hlo import alike

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.hlo import Computation, Instruction, protos

# One operation of the transcendental unit for each element, and one of vector arithmetic.
_TRANSCENDENTAL = frozenset({
    "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "tan", "sine", "cosine", "erf",
    "sqrt", "rsqrt", "cbrt", "power", "divide", "atan2", "remainder",
})  # fmt: skip
# One operation of vector arithmetic for each element of the result.
_ARITHMETIC = _TRANSCENDENTAL | {
    "abs", "add", "and", "ceil", "clamp", "compare", "convert", "floor", "is-finite", "maximum", "minimum", "multiply",
    "negate", "not", "or", "popcnt", "reduce-precision", "round-nearest-afz", "round-nearest-even", "select",
    "shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "subtract", "xor", "clz",
    "stochastic-convert",
}  # fmt: skip
# What takes longer than its bytes and counted operations say: passes of a sort, rows fetched one by one.
_LONGER = frozenset({
    "sort", "gather", "scatter", "fft", "cholesky", "triangular-solve", "topk", "select-and-scatter",
    "rng-bit-generator", "rng", "custom-call", "map",
})  # fmt: skip
_REDUCING = frozenset({"reduce", "reduce-window"})
# Vector operations for each element that is reduced: one that adds it, and what brings sublanes and lanes together, by
# the machine code of sums, maxima and dots over rows and columns (benchmarks/fusions_static.py).
_REDUCTION = 2
_MATRIX = frozenset({"dot", "convolution"})
_DEEPEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is computed. `flops` are matrix operations as the program asks for them, `passes` the operations
    that the units do for them by rate (`bf16`, `int8`, `fp8`); None is unknown.

    `arithmetic` and `transcendentals` count elements. `is_least` says that some of it takes longer than its
    counts tell.
    """

    flops: int | None = 0
    passes: Mapping[str, int] | None = None
    arithmetic: int = 0
    transcendentals: int = 0
    is_least: bool = False


_NOTHING = Work()


def work_in(instruction: Instruction) -> Work:
    """What one execution of an instruction computes; of a fusion, all that its body does."""
    if instruction.opcode == "fusion" and instruction.called_computations:
        return _body_work(alike(instruction.called_computations[0]), 0)
    return _single(instruction, 1.0)


def _body_work(body: Computation, depth: int) -> Work:
    known = body.module.facts[_body_work]
    if body not in known:
        known[body] = _count(body, depth)
    return known[body]


def _count(body: Computation, depth: int) -> Work:
    found: list[Work] = []
    use = instruction_use(body)
    # Most of a body is plain arithmetic on whole values: summed here, rather than as so many objects.
    arithmetic, transcendentals = 0, 0
    for instruction in body.instructions:
        opcode = instruction.opcode
        if use is not None and not use.get(instruction.id):
            continue
        if opcode in _ARITHMETIC:
            elements = instruction.shape.elements
            elements = elements if use is None else round(elements * use[instruction.id])
            arithmetic += elements
            transcendentals += elements if opcode in _TRANSCENDENTAL else 0
        elif opcode == "fusion" and instruction.called_computations and depth < _DEEPEST:
            found.append(_body_work(instruction.called_computations[0], depth + 1))
        elif opcode in _MATRIX or opcode in _LONGER or opcode in _REDUCING:
            found.append(_single(instruction, 1.0 if use is None else use[instruction.id]))
    plain = Work(passes={}, arithmetic=arithmetic, transcendentals=transcendentals)
    return add_work([*found, plain]) if found else plain


def add_work(parts: list[Work]) -> Work:
    """The sum. What is unknown of a part is unknown of it all."""
    flops, passes = 0, dict[str, int]()
    arithmetic, transcendentals, is_least, is_known = 0, 0, False, True
    for part in parts:
        arithmetic += part.arithmetic
        transcendentals += part.transcendentals
        is_least = is_least or part.is_least
        is_known = is_known and part.flops is not None
        flops += part.flops or 0
        for rate, count in (part.passes or {}).items():
            passes[rate] = passes.get(rate, 0) + count
    return Work(
        flops=flops if is_known else None,
        passes=passes,
        arithmetic=arithmetic,
        transcendentals=transcendentals,
        is_least=is_least or not is_known,
    )


def _single(instruction: Instruction, needed: float) -> Work:
    """One instruction that is no fusion, of whose result the fraction `needed` is used."""
    opcode = instruction.opcode
    if opcode in _MATRIX:
        flops = matrix_flops(instruction)
        if flops is None:
            return Work(flops=None, is_least=True)
        rate, times = rate_of(instruction)
        return Work(flops=flops, passes={rate: flops * times})
    if opcode in _LONGER:
        return Work(is_least=True)
    if opcode not in _ARITHMETIC and opcode not in _REDUCING:
        return _NOTHING
    elements = round(_elements(instruction) * needed)
    return Work(
        is_least=opcode == "reduce-window" and _window_steps(instruction) > 0,
        arithmetic=elements,
        transcendentals=elements if opcode in _TRANSCENDENTAL else 0,
    )


def _elements(instruction: Instruction) -> int:
    """Elements that an operation is done on: those of the operand where it reduces."""
    if instruction.opcode == "reduce" and instruction.operands:
        return _REDUCTION * instruction.operands[0].shape.elements
    if instruction.opcode == "reduce-window" and instruction.operands:
        return instruction.operands[0].shape.elements + instruction.shape.elements * _window_steps(
            instruction
        )
    return instruction.shape.elements


def _window_steps(reduction: Instruction) -> int:
    """Operations for each element of a windowed reduction's result, beyond one for each that is read.

    The compiler writes "reduce, and spread the result again" as a window that covers its dimension at every
    position: no operation more. A window that slides takes at least as many as doubling does.
    """
    dimensions = zip(reduction.operands[0].shape.dimensions, reduction.proto.window.dimensions, strict=False)
    return sum((w.size - 1).bit_length() for n, w in dimensions if not _covers(w, n))


def _covers(window: protos.WindowDimension, size: int) -> bool:
    """Whether a window sees all of its dimension wherever it stands."""
    reach = size - 1
    return min(window.padding_low, window.padding_high, window.size - 1 - reach) >= reach
