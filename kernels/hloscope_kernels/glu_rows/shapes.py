"""Real shapes of the buffer, named once for tests and benchmarks: [rows, 2 * mlp] and how many rows are valid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GluShape:
    """A buffer of one device in a published or public configuration."""

    rows: int
    mlp: int
    limit: int


# Qwen3.5 397B-A17B: 512 experts over 8, top-10, buffer factor 2.75; 56 % valid on the busiest shard.
QWEN35_397B = GluShape(rows=225_280, mlp=1_024, limit=126_156)
# DeepSeek-V3 671B: 256 experts over 4, top-8, buffer factor 2.
DEEPSEEK_V3_671B = GluShape(rows=131_072, mlp=2_048, limit=65_536)
