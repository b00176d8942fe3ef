"""HS105: rows of a narrow ragged buffer are kept in f32 in HBM."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.place import phase_of
from hloscope.analysis.ragged import kernel_names
from hloscope.analysis.rows import RaggedBuffer, is_wide_array
from hloscope.analysis.work import is_plumbing
from hloscope.hlo import Instruction, Shape
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS105", name="wide-ragged-rows", severity=Severity.WARNING)
def wide_ragged_rows(analyses: Analyses) -> Iterable[Finding]:
    """An intermediate over all rows of a ragged expert buffer stands in HBM in a wider type than the buffer.

    ## What it does
    Among the values over the rows of a ragged buffer (see HS101), reports arrays of data (not vectors of one
    number a row) in HBM whose elements are wider than those that the grouped matmuls read.

    ## Why is this bad
    The largest buffers of the step take twice the memory, empty rows included, and twice the bytes to write and
    to read. Often it is a stray f32: a routing weight that was not cast, an accumulation outside of a fusion.

    ## Example
    ```hlo
    x = bf16[4096,512] parameter(0)
    sizes = s32[8] parameter(1)
    w = bf16[8,512,1024] parameter(2)
    out = bf16[4096,1024] custom-call(sizes, x, w), custom_call_target="tpu_custom_call"
    ROOT wide = f32[4096,1024] convert(out)  // expect: HS105
    ```

    ## What to do
    Cast what widens the rows (weights, biases, constants) to the buffer's type, or compute in f32 within the
    fusion and round its result. Where sums need f32, sum after rows went back to their tokens.

    ## Fix safety
    No automatic fix yet. Rounding an intermediate changes results within the rounding of the narrow type.
    """
    families: dict[tuple[str, str, int], list[tuple[RaggedBuffer, Instruction, Shape]]] = {}
    for buffer in analyses.rows.buffers:
        narrow = min(b.shape.element_bits for g in buffer.matmuls for b in g.buffers)
        for value in buffer.values:
            for leaf in _wide(value, buffer.rows, narrow):
                key = (leaf.short, phase_of(value).value, buffer.groups)
                families.setdefault(key, []).append((buffer, value, leaf))
    for (shape, phase, _), found in families.items():
        buffer, _, leaf = found[0]
        narrow = min(b.shape.element_bits for g in buffer.matmuls for b in g.buffers)
        moved = 2 * leaf.padded_bytes  # written, and read by at least one
        saved = round(moved * (1 - narrow / leaf.element_bits))
        yield fold(
            analyses,
            "HS105",
            Severity.WARNING,
            f"ragged rows in a wide type: {shape}{in_phase(phase)}",
            [Site(instruction=v, moved=moved, saved=saved) for _, v, _ in found],
            advice=f"round to {narrow} bits within the operation that makes it, or cast what widens it",
            details=(
                f"a buffer of {kernel_names(buffer)} has {narrow} bits an element; each wide copy takes"
                f" {size(leaf.padded_bytes)} in HBM, is written once and read at least once",
            ),
            facts={"rows": buffer.rows, "buffer_bytes": leaf.padded_bytes},
        )


def _wide(value: Instruction, rows: int, narrow: int) -> list[Shape]:
    """The arrays over rows that an instruction writes to HBM wider than `narrow` bits."""
    if is_plumbing(value) or value.opcode == "broadcast":
        return []
    leaves = [leaf for leaf in value.shape.parts if is_wide_array(leaf, rows)]
    return [leaf for leaf in leaves if leaf.memory_space == 0 and leaf.element_bits > narrow]
