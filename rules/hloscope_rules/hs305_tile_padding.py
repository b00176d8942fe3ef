"""HS305: a buffer is much larger in memory than its elements, as tiles pad it."""

from __future__ import annotations

from collections.abc import Iterable

from hloscope.analysis.bundle import Analyses
from hloscope.analysis.memory import Buffer
from hloscope.rule import Finding, Severity, rule
from hloscope.units import size
from hloscope_rules._family import in_phase
from hloscope_rules._peak import BufferKey, buffer_finding, buffer_key, of_peak


@rule(code="HS305", name="tile-padding", severity=Severity.WARNING, needs="memory")
def tile_padding(
    analyses: Analyses, *, ratio: float = 1.25, share_of_peak: float = 0.005
) -> Iterable[Finding]:
    """A buffer at the peak takes more than 1.25 times the bytes of its elements, because tiles pad it.

    ## What it does
    Compares, for every buffer alive at the peak, the bytes that the compiler assigned with those of its elements, and
    reports families that are padded by more than a quarter and whose padding is half a percent of the peak.

    ## Why is this bad
    The last two dimensions of a layout are padded to a tile (8 x 128 for f32): a last dimension of 1 takes 128 times
    its bytes, one of 64 twice, one of 192 a third more, in memory and in every pass over it.

    ## Example
    ```hlo
    p = f32[262144,8]{1,0:T(8,128)} parameter(0)
    x = f32[262144,8]{1,0:T(8,128)} negate(p)  // expect: HS305
    ROOT y = f32[262144,8]{1,0:T(8,128)} exponential(x)  // expect: HS305
    ```

    ## What to do
    Give it a last dimension that fills lanes: fold heads into the head dimension before it is stored, put the small
    dimension first, pad a head size of 192 to 256 only where it is computed with, keep masks and scalars a row
    without a trailing 1.

    ## Fix safety
    No automatic fix yet. Another shape of the same elements holds the same values.

    ## Options
    - `ratio`: padded over unpadded bytes from which a buffer counts
    - `share_of_peak`: part of the peak that the padding of a family must be
    """
    families: dict[BufferKey, list[tuple[Buffer, int]]] = {}
    for buffer in analyses.memory.buffers_at_peak:
        bare = buffer.unpadded_bytes
        if bare and buffer.kind != "argument" and buffer.bytes > ratio * bare and _is_its_own(buffer):
            families.setdefault(buffer_key(buffer), []).append((buffer, bare))
    for (label, shape, phase), found in families.items():
        padding = sum(b.bytes - bare for b, bare in found)
        if padding < share_of_peak * (analyses.memory.peak_bytes or 0):
            continue
        buffer, bare = found[0]
        yield buffer_finding(
            analyses,
            "HS305",
            Severity.WARNING,
            f"{shape or 'a buffer'} padded by tiles: {label}{in_phase(phase)}",
            [b for b, _ in found],
            held=padding,
            advice="give it a last dimension that is a multiple of 128, or lay it out with a longer one last",
            details=(
                f"{size(bare)} of elements take {size(buffer.bytes)} as {buffer.shape},"
                f" {buffer.bytes / bare:.2f} times as much; padding {of_peak(analyses, padding)}",
            ),
            facts={"ratio": round(buffer.bytes / bare, 3), "padding_bytes": padding},
        )


def _is_its_own(buffer: Buffer) -> bool:
    """Whether the size is this value's: a smaller one may lie in the place of a larger one."""
    return buffer.shape is not None and buffer.shape.padded_bytes == buffer.bytes
