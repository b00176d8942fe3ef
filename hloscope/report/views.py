"""Parts of a report as notebooks show them: the analyses' own results, with the report's charts and as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

from hloscope.analysis.census import Census
from hloscope.analysis.collectives import Collectives
from hloscope.analysis.memory import Memory
from hloscope.rule import Finding
from hloscope.units import plural, size

if TYPE_CHECKING:
    import pandas as pd

    from hloscope.report.model import Report

Listed = Literal["buffers", "families", "temporaries", "live"]


class _Part:
    """A part of a report. `_report` is the report that it belongs to, `_sections` what of the page shows it."""

    __slots__ = ()
    _report: Report | None
    _sections = ""

    def _repr_html_(self) -> str | None:
        """The part of the HTML report, for notebooks; None (the plain text is shown) without the extra `html`."""
        from hloscope.report.html.cells import part

        return None if self._report is None else part(self._report, self._sections)

    def _rows(self, *path: str) -> list[dict[str, Any]]:
        assert self._report is not None
        found: Any = self._report.to_dict()
        for name in path:
            found = found[name]
        return found


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryView(_Part, Memory):
    """`report.memory`."""

    _report: Report | None = field(default=None, repr=False, compare=False)
    _sections = "memory buffers"

    @classmethod
    def of(cls, memory: Memory, report: Report | None = None) -> Self:
        """The memory of a report."""
        return cls(**_values(memory, Memory), _report=report)

    def to_frame(self, what: Listed = "buffers") -> pd.DataFrame:
        """Rows of the JSON report: `buffers` alive at the peak, their `families`, the largest `temporaries` of the
        whole schedule, or `live` bytes by position. Sizes are bytes. Needs the extra `notebook`."""
        from hloscope.report.frames import frame

        names = {"buffers": "buffers_at_peak", "families": "families_at_peak"}
        names |= {"temporaries": "largest_temporaries", "live": "live"}
        if what not in names:
            raise ValueError(f"there are no rows {what!r}: take {', '.join(names)}")
        return frame(self._rows("memory", names[what]), names[what])

    def __repr__(self) -> str:
        return (
            f"Memory(total {size(self.total_bytes)}, peak {size(self.peak_bytes)}, temp {size(self.temp_bytes)}, "
            f"arena {size(self.arena_bytes)}, {plural(len(self.buffers_at_peak), 'buffer')} at the peak)"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CensusView(_Part, Census):
    """`report.census`."""

    _report: Report | None = field(default=None, repr=False, compare=False)
    _sections = "census"

    @classmethod
    def of(cls, census: Census, report: Report | None = None) -> Self:
        """The census of a report."""
        return cls(**_values(census, Census), _report=report)

    def to_frame(self) -> pd.DataFrame:
        """A row for each family, as in the JSON report, times too. Needs the extra `notebook`.

        Examples:
            >>> import hloscope as hs
            >>> report = hs.load("tests/data/qwen3_0p6b_dense.hlo.pb.gz")
            >>> int(report.census.to_frame().query("phase == 'recompute'")["count"].sum())
            56
        """
        from hloscope.report.frames import frame

        return frame(self._rows("census"), "census")

    def __repr__(self) -> str:
        return f"Census({plural(len(self.families), 'family')}, {plural(self.fusion_count, 'fusion')})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectivesView(_Part, Collectives):
    """`report.collectives`."""

    _report: Report | None = field(default=None, repr=False, compare=False)
    _sections = "collectives"

    @classmethod
    def of(cls, collectives: Collectives, report: Report | None = None) -> Self:
        """The collectives of a report."""
        return cls(**_values(collectives, Collectives), _report=report)

    def to_frame(self) -> pd.DataFrame:
        """A row for each kind, as in the JSON report, times too. Needs the extra `notebook`."""
        from hloscope.report.frames import frame

        return frame(self._rows("collectives"), "collectives")

    def __repr__(self) -> str:
        return f"Collectives({plural(len(self.collectives), 'kind')})"


class Findings(_Part, tuple[Finding, ...]):
    """`report.findings`: a tuple of findings, the costliest first."""

    _report: Report | None = None
    _sections = "findings"

    @classmethod
    def of(cls, findings: Iterable[Finding], report: Report | None = None) -> Self:
        """The findings of a report."""
        made = cls(findings)
        made._report = report
        return made

    def to_frame(self) -> pd.DataFrame:
        """A row for each finding, as in the JSON report. Needs the extra `notebook`."""
        from hloscope.report.frames import frame

        return frame(self._rows("findings"), "findings")

    def __repr__(self) -> str:
        lines = "".join(f"\n  {f.code} {f.title}" for f in self)
        return f"Findings({len(self)}){lines}"


def _values(value: Any, kind: type) -> dict[str, Any]:
    return dict(_each(value, kind))


def _each(value: Any, kind: Any) -> Iterator[tuple[str, Any]]:
    for own in fields(kind):
        yield own.name, getattr(value, own.name)
