"""Grouped matmuls of real models, named once for tests and benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`[m, k]` times `groups` weights of `[k, n]`.

    Attributes:
      name: model and matrix.
      m: rows of the buffer on one device.
      k: contracted width.
      n: output width.
      groups: groups held by one device.
      valid_rows: rows that hold tokens, as published or evenly routed.
    """

    name: str
    m: int
    k: int
    n: int
    groups: int
    valid_rows: int


# Qwen3.5 397B-A17B: hidden 4096, 512 experts over 8 devices, mlp 1024, gate and up side by side; the published
# buffer and its valid rows on the busiest device.
QWEN35_397B_WI = Shape(name="qwen3.5-397b wi", m=225_280, k=4096, n=2048, groups=64, valid_rows=126_156)
QWEN35_397B_WO = Shape(name="qwen3.5-397b wo", m=225_280, k=1024, n=4096, groups=64, valid_rows=126_156)
# Qwen3 30B-A3B: hidden 2048, 128 experts over 4 devices, mlp 768; 8,192 tokens, top 8, a buffer twice as long.
QWEN3_30B_WI = Shape(name="qwen3-30b wi", m=32_768, k=2048, n=1536, groups=32, valid_rows=16_384)
QWEN3_30B_WO = Shape(name="qwen3-30b wo", m=32_768, k=768, n=2048, groups=32, valid_rows=16_384)
# The published best and worst cases of a Triton kernel against XLA's on A100, with the fewest rows of its region.
TRITON_BEST = Shape(name="K=N=2048 G=32", m=4096, k=2048, n=2048, groups=32, valid_rows=4096)
TRITON_WORST = Shape(name="K=N=256 G=16", m=4096, k=256, n=256, groups=16, valid_rows=4096)

REAL_SHAPES = (QWEN35_397B_WI, QWEN35_397B_WO, QWEN3_30B_WI, QWEN3_30B_WO, TRITON_BEST, TRITON_WORST)
