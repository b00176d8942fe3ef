"""HS306: an f32 copy of a bf16 buffer is written to HBM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.place import phase_of
from hloscope.analysis.uses import taker, uses
from hloscope.analysis.widths import widened_from
from hloscope.hlo import Instruction, Shape
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import Site, fold, in_phase


@rule(code="HS306", name="wide-copy", severity=Severity.WARNING)
def wide_copy(analyses: Analyses, *, smallest_bytes: int = 8 << 20) -> Iterable[Finding]:
    """A buffer is written to HBM once more in a wider type, with nothing computed: an f32 copy of bf16 values.

    ## What it does
    Finds conversions, and results of fusions, that are the elements of a narrower array and nothing else (seen
    through copies, slices and layout changes within the fusion), lie in HBM and take 8 MiB or more. Where the
    narrow array lies in HBM too, all of the wide one is wasted; where a fusion made it and widened it as it
    wrote (a matmul with an f32 result), the difference is.

    ## Why is this bad
    The copy takes twice the memory of its source and holds no more information. It is written and read again
    where the reader could have converted as it read.

    ## Example
    ```hlo
    double {
      p = f32[4096,4096] parameter(0)
      ROOT s = f32[4096,4096] add(p, p)
    }
    x = bf16[4096,4096] parameter(0)
    wide = f32[4096,4096] convert(x)  // expect: HS306
    ROOT y = f32[4096,4096] fusion(wide), kind=kLoop, calls=double
    ```

    ## What to do
    Convert where the value is used, not where it is made (`astype` next to the arithmetic, `preferred_element_type`
    for a matmul); keep what crosses a scan, a `shard_map` or a kernel call in bf16. A copy that two readers share
    goes away when both convert for themselves.

    ## Fix safety
    No automatic fix yet. Converting later gives the same values.

    ## Options
    - `smallest_bytes`: size of the wide copy, padding included, below which it is left alone
    """
    families: dict[tuple[str, str, str, bool], list[tuple[Instruction, Shape, Instruction]]] = {}
    for value, leaf, source in _copies(analyses, smallest_bytes):
        key = (leaf.short, source.shape.short, phase_of(value).value, source.computation is value.computation)
        families.setdefault(key, []).append((value, leaf, source))
    for (wide, narrow, phase, is_copy), found in families.items():
        value, leaf, source = found[0]
        readers = ", ".join(f"%{taker(u.user).name}" for u in uses(value)[:2]) or "nobody"
        all_bytes = leaf.padded_bytes
        narrow_bytes = all_bytes * source.shape.element_bits // leaf.element_bits
        moved, saved = 2 * all_bytes, 2 * (all_bytes - narrow_bytes)
        told = f"takes {size(all_bytes)} where {size(narrow_bytes)} would do: widened as it is written"
        if is_copy:
            moved, saved = moved + source.shape.padded_bytes, 2 * all_bytes
            told = f"takes {size(all_bytes)} beside its source"
        yield fold(
            analyses,
            "HS306",
            Severity.WARNING,
            f"{wide} is {narrow} in a wider type{in_phase(phase)}",
            [Site(instruction=v, moved=moved, saved=saved) for v, _, _ in found],
            advice="convert where the value is read, and keep the narrow one",
            details=(f"{told}; read by {readers}",),
            facts={"copy_bytes": all_bytes, "source": source.name},
        )


def _copies(analyses: Analyses, smallest_bytes: int) -> Iterator[tuple[Instruction, Shape, Instruction]]:
    for computation in analyses.module.control_computations:
        for value in computation.instructions:
            if value.opcode not in ("convert", "fusion"):
                continue
            for index, leaf in enumerate(value.shape.tuple_shapes or (value.shape,)):
                if leaf.memory_space != 0 or leaf.is_tuple or leaf.padded_bytes < smallest_bytes:
                    continue
                source = widened_from(value, index if value.shape.is_tuple else None)
                if source is not None and leaf.elements == source.shape.elements:
                    yield value, leaf, source
