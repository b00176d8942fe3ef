"""The page: what the template is filled with, and the libraries that travel in it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hloscope.errors import UserError
from hloscope.report.escape import printable
from hloscope.report.text_findings import ACTION
from hloscope.units import count, duration, percent, plural, size, where

if TYPE_CHECKING:
    from jinja2 import Template

    from hloscope.analysis.memory import Buffer
    from hloscope.hlo import Instruction
    from hloscope.hlo.neighbourhood import Neighbourhood
    from hloscope.report.diff import Diff
    from hloscope.report.html.tables import HtmlTable
    from hloscope.report.model import Report

_HERE = files("hloscope.report.html")
# A list of users or of instructions longer than this tells nothing more.
_USERS = 20
# Findings whose first instruction is drawn among its neighbours.
_DRAWN = 20
# What the page is made with.
EXTRA = ("itables", "jinja2", "plotly")
_CHARTED = frozenset({"memory", "time", "findings"})
_SECTIONS = _CHARTED | {"overview", "buffers", "census", "collectives", "target"}


def render_html(
    report: Report, above: Sequence[HtmlTable] = (), *, sections: frozenset[str] = frozenset()
) -> str:
    """The report as one HTML page that opens offline, with tables `above` what it shows of the step.

    `sections` are the ids of those to show, without a header; all of the page if there are none.
    Raises UserError if the libraries for it are missing.
    """
    require_libraries()
    from hloscope.report.html import charts
    from hloscope.report.html.compared import verdict_tables
    from hloscope.report.html.lanes import lanes
    from hloscope.report.html.neighbours import neighbours
    from hloscope.report.html.tables import census, collectives, findings, temporaries

    shown = sections or _SECTIONS
    made = {"buffers": temporaries, "census": census, "collectives": collectives}
    # What is not shown is neither made nor carried along.
    with_memory, with_time = "memory" in shown, "time" in shown
    drawn = {
        "curve": charts.memory_curve(report.memory) if with_memory else None,
        "treemaps": charts.peak_treemaps(report.memory) if with_memory else {},
        "roofline": charts.roofline(report.time) if with_time else None,
        "lanes": lanes(report.time) if with_time else {},
    }
    graphs = {
        number: neighbours(finding.instructions[0])
        for number, finding in enumerate(report.findings[:_DRAWN] if "findings" in shown else ())
        if finding.instructions
    }
    filled = [make(report) for name, make in made.items() if name in shown]
    tables = [table for table in filled if table.rows]
    return _template("page.html.j2").render(
        report=report,
        target=report.target,
        memory=report.memory,
        time=report.time,
        has_roofline=drawn["roofline"] is not None,
        has_lanes=bool(drawn["lanes"]),
        graphs=graphs,
        verdict=_verdict(report),
        findings=findings(report),
        action=ACTION,
        whole=not sections,
        shown=shown,
        tables=tables,
        data=_embedded(
            {
                "charts": drawn | {"graphs": graphs},
                "peak": report.memory.peak_position,
                "buffers": [_buffer(b) for b in report.memory.buffers_at_peak] if with_memory else [],
                "temporaries": [_buffer(b) for b in report.memory.largest_temporaries] if with_memory else [],
            }
        ),
        above=[table for table in (*above, *verdict_tables(report)) if table.rows],
        **_shared(charts=bool(shown & _CHARTED), tables=bool(tables) or not sections),
    )


def render_diff(diff: Diff, regressions: Sequence[str]) -> str:
    """A diff as one HTML page that opens offline. Raises UserError if the libraries for it are missing."""
    require_libraries()
    from hloscope.report.html.charts import before_and_after
    from hloscope.report.html.compared import diff_tables
    from hloscope.report.text_diff import not_compared_words

    bytes_of_both = before_and_after(diff)
    return _template("diff.html.j2").render(
        diff=diff,
        regressions=regressions,
        has_figures=bytes_of_both is not None,
        not_compared=not_compared_words(diff.not_compared) if diff.not_compared else "",
        tables=[table for table in diff_tables(diff) if table.rows],
        data=_embedded({"charts": {"bytes": bytes_of_both}}),
        **_shared(),
    )


def render_neighbours(around: Neighbourhood) -> str:
    """A neighbourhood as one HTML page with its chart. Raises UserError if the libraries for it are missing."""
    require_libraries()
    from hloscope.report.html.neighbours import drawn

    return _template("neighbours.html.j2").render(
        name=around.centre.name,
        data=_embedded({"charts": {"graphs": {0: drawn(around)}}}),
        **_shared(tables=False),
    )


def _shared(*, charts: bool = True, tables: bool = True) -> dict[str, str]:
    """What every page carries; the libraries of charts and of tables only where there are any."""
    return {
        "style": _HERE.joinpath("style.css").read_text("utf-8"),
        "script": _HERE.joinpath("page.js").read_text("utf-8"),
        "plotly": _packed(_plotly()) if charts else "",
        "datatables": _packed(_datatables()) if tables else "",
        "datatables_style": _datatables_style() if tables else "",
    }


def require_libraries() -> None:
    """Raises UserError if what the page is made with is not installed."""
    for name in EXTRA:
        if find_spec(name) is None:
            raise UserError(
                f"the HTML report needs {name}, which is not installed: pip install 'hloscope[html]'"
            )


def _template(name: str) -> Template:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda part: _HERE.joinpath(part).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size,
        "count": count,
        "duration": duration,
        "printable": printable,
        "where": where,
    }
    environment.globals.update(plural=plural, percent=percent)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return environment.get_template(name)


def _verdict(report: Report) -> dict[str, Any]:
    """Does it fit, what dominates, what to do: the three lines at the top."""
    memory = report.memory
    total, limit = memory.total_bytes, memory.hbm_limit_bytes
    top = memory.families_at_peak[0] if memory.families_at_peak else None
    # What does not fit begins with what is alive at the peak: anything else does not help.
    over = report.overrun.named if report.overrun else ()
    urgent = [named.finding for named in over if named.finding in report.findings]
    first = next(iter([*urgent, *report.findings]), None)
    return {
        "fits": None if total is None or limit is None else total <= limit,
        "share": None if not total or not limit else total / limit,
        "dominates": top,
        "finding": first,
        "number": None if first is None else report.findings.index(first),
    }


def _buffer(buffer: Buffer) -> dict[str, Any]:
    """A buffer for the panel that tells its life: names as they are, the page writes them as text."""
    made = buffer.instruction
    return {
        "label": printable(buffer.label[:300]),
        "shape": buffer.shape.short[:300] if buffer.shape is not None else None,
        "layout": str(buffer.shape.layout) if buffer.shape is not None and buffer.shape.layout else None,
        "bytes": buffer.bytes,
        "size": size(buffer.bytes),
        "unpadded": None if buffer.unpadded_bytes is None else size(buffer.unpadded_bytes),
        "kind": buffer.kind,
        "phase": buffer.phase,
        "instruction": None if made is None else printable(made.name[:200]),
        "opcode": None if made is None else made.opcode,
        "op_name": printable(buffer.op_name[:500]),
        "source": None if buffer.source is None else printable(str(buffer.source)[:300]),
        "users": [] if made is None else _users(made),
        "first": buffer.first,
        "last": buffer.last,
    }


def _users(made: Instruction) -> list[str]:
    users = [printable(f"{u.opcode} {u.name}"[:200]) for u in made.users[:_USERS]]
    more = len(made.users) - len(users)
    return [*users, f"{more} more"] if more > 0 else users


def _embedded(value: object) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _datatables() -> str:
    return files("itables").joinpath("html/dt_bundle.js").read_text("utf-8")


def _datatables_style() -> str:
    return files("itables").joinpath("html/dt_bundle.css").read_text("utf-8")


@cache
def _packed(text: str) -> str:
    """Text as base64 of its gzip, which the browser unpacks; the same for the same text."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
