"""Real shapes of the buffers, named once for tests and benchmarks: [rows, hidden] and how many rows are valid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsortShape:
    """The buffers of one device in a published or public configuration."""

    rows: int
    hidden: int
    limit: int


# Qwen3.5 397B-A17B: 512 experts over 8, top-10, buffer factor 2.75; 56 % valid on the busiest shard.
QWEN35_397B = UnsortShape(rows=225_280, hidden=4_096, limit=126_156)
