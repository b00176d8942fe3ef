"""HS104: a gather fills, or a scatter reads, every row of a ragged expert buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.place import phase_of
from hloscope.analysis.ragged import ValidRows, kernel_names, valid_rows
from hloscope.analysis.row_moves import RowMove, row_moves
from hloscope.analysis.rows import RaggedBuffer
from hloscope.rule import Finding, Severity, rule
from hloscope.units import UNKNOWN, share
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS104", name="full-buffer-gather", severity=Severity.WARNING)
def full_buffer_gather(analyses: Analyses) -> Iterable[Finding]:
    """A gather fills every row of a ragged expert buffer, or a scatter adds every row back to the tokens.

    ## What it does
    Looks at the border of the ragged buffers that HS101 follows: the compiler's own gathers whose result has a
    row for each row of the buffer, and scatters whose updates have, alone, within fusions and on the SparseCore.
    Kernels are left out, as they can be told how many rows are valid, and so are gathers that only read from the
    buffer: they touch the rows of tokens and no other.

    ## Why is this bad
    The dispatch and the backward of the combine fetch a row of the hidden size for each row of the buffer, the
    empty ones too (from a clamped or made-up index), and a scatter reads them all and adds them to something.

    ## Example
    ```hlo
    x = bf16[2048,512] parameter(0)
    index = s32[4096,1] parameter(1)
    sizes = s32[8] parameter(2)
    w = bf16[8,512,1024] parameter(3)
    packed = bf16[4096,512] gather(x, index), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,512}  // expect: HS104
    ROOT out = bf16[4096,1024] custom-call(sizes, packed, w), custom_call_target="tpu_custom_call"
    ```

    ## What to do
    Dispatch and combine with kernels that take the number of valid rows (a ragged gather), make the buffer
    smaller, or let the grouped matmul fetch its rows itself.

    ## Fix safety
    No automatic fix yet. Leaving empty rows unwritten is safe where the dataflow shows that nobody reads them.
    """  # noqa: E501 - HLO has one instruction a line
    families: dict[tuple[str, str, str, ValidRows], list[tuple[RaggedBuffer, RowMove]]] = {}
    for buffer in analyses.rows.buffers:
        valid = valid_rows(analyses, buffer)
        if valid.fraction == 1.0:
            continue
        for move in row_moves(buffer):
            shape = f"{buffer.rows:,} rows"
            key = (move.kind, phase_of(move.instruction).value, shape, valid)
            families.setdefault(key, []).append((buffer, move))
    for (kind, phase, _, valid), found in families.items():
        yield _finding(analyses, f"{kind}{in_phase(phase)}", valid, found)


def _finding(
    analyses: Analyses, what: str, valid: ValidRows, found: list[tuple[RaggedBuffer, RowMove]]
) -> Finding:
    buffer = found[0][0]
    known = UNKNOWN if valid.fraction is None else share(valid.fraction)
    return fold(
        analyses,
        "HS104",
        Severity.WARNING,
        f"full-buffer row {what} of {buffer.rows:,} ragged rows",
        list(_sites(valid, found)),
        advice="move only the valid rows: a ragged gather that is told how many there are",
        details=(f"at a buffer of {kernel_names(buffer)}", f"valid rows: {known} ({valid.reason})"),
        facts={"rows": buffer.rows, "groups": buffer.groups, "valid_fraction": valid.fraction},
    )


def _sites(valid: ValidRows, found: list[tuple[RaggedBuffer, RowMove]]) -> Iterator[Site]:
    for _, move in found:
        unknown = move.row_bytes is None or valid.fraction is None
        saved = None if unknown else round((move.row_bytes or 0) * (1 - (valid.fraction or 0)))
        yield Site(instruction=move.instruction, moved=move.row_bytes, saved=saved)
