"""The findings: what is wasted, where, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from hloscope.report.baseline import Held
from hloscope.report.terminal import beside, cut, indented, joined, words
from hloscope.rule import Finding, Severity
from hloscope.units import duration, plural, size, some, where

_SHOWN_FINDINGS = 10
_SHOWN_DETAILS = 4
_LONGEST = 300
_UNPRICED = "waste unknown without the valid-row share: --valid-fraction"
# What a step's author may do about a finding that an action is known for.
ACTION = "hloscope apply-rules STEP tries that, and keeps it if it helps"
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def findings(
    found: Sequence[Finding], everything: bool, held: Held | None = None
) -> Iterator[RenderableType]:
    """Every finding as a title, its figures and details; what those of one code share, and advice, once.

    `held` tells what a baseline accepts, which is not among them.
    """
    if not found:
        known = held is not None and held.suppressed
        none = (
            "that the baseline does not accept"
            if known
            else "the rules found nothing that they know to be waste"
        )
        yield words(("Findings", "bold"), f"  none{'' if known else ':'} {none}")
        return
    codes = dict.fromkeys(f.code for f in found)
    places = sum(f.places for f in found)
    yield words(("Findings", "bold"), (f"  {plural(len(codes), 'code')}, {plural(places, 'site')}", "dim"))
    shown = found if everything else found[:_SHOWN_FINDINGS]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    for code in dict.fromkeys(f.code for f in shown):
        _add_code(grid, [f for f in shown if f.code == code], everything)
    yield indented(grid)
    if len(found) > len(shown):
        more = plural(len(found) - len(shown), "more finding")
        yield indented(words((f"{more} with --all", "dim")))


def accepted(held: Held | None, everything: bool) -> Iterator[RenderableType]:
    """How much a baseline accepts (each with its reason, with `everything`), and entries that nothing was found for."""
    if held is None:
        return
    count = plural(len(held.suppressed), "finding")
    of = " on ".join(t for t in (held.step.name, held.step.topology) if t)
    yield words(("Baseline", "bold"), f"  {count} of {cut(of, 100)} accepted by {cut(held.path, 100)}")
    if held.others:
        # A renamed file or another --topology, often enough.
        names = [" on ".join(t for t in (s.name, s.topology) if t) for s in held.others]
        shown = some([cut(name, 60) for name in names], _SHOWN_DETAILS)
        yield indented(words((f"it has no entries of this step, but of {shown}", "yellow")))
    if everything:
        for known in held.suppressed:
            title = cut(known.finding.title, _LONGEST)
            yield indented(words(known.finding.code, f"  {title}: ", (cut(known.reason, _LONGEST), "dim")))
    if held.stale:
        yield indented(
            words((f"{plural(len(held.stale), 'entry')} without a finding: mended, or changed", "yellow"))
        )
    if held.removed:
        count = plural(len(held.removed), "entry")
        yield indented(words((f"{count} without a finding removed: mended, or of another program", "yellow")))
    for entry in held.stale if everything else held.stale[:_SHOWN_DETAILS]:
        yield indented(words(f"{entry.code}  {cut(entry.title, _LONGEST)} ", (entry.fingerprint, "dim")), 4)
    if not everything and len(held.stale) > _SHOWN_DETAILS:
        yield indented(words((f"{len(held.stale) - _SHOWN_DETAILS} more with --all", "dim")), 4)


def _add_code(grid: Table, found: Sequence[Finding], everything: bool) -> None:
    said = Counter(detail for finding in found for detail in dict.fromkeys(finding.details))
    for finding in found:
        grid.add_row(words((finding.code, _STYLES[finding.severity])), words(cut(finding.title, _LONGEST)))
        grid.add_row("", _figures(finding))
        _add_details(grid, [d for d in finding.details if said[d] == 1], everything)
    _add_details(grid, [detail for detail, times in said.items() if times > 1], everything)
    if any(map(_lacks_valid_share, found)):
        grid.add_row("", words((_UNPRICED, "dim")))
    for advice in dict.fromkeys(f.advice for f in found if f.advice):
        grid.add_row(words(("→", "green")), words((cut(advice, _LONGEST), "green")))
    if any(f.fix != "none" for f in found):
        grid.add_row("", words((ACTION, "green")))


def _add_details(grid: Table, details: Sequence[str], everything: bool) -> None:
    shown = details if everything else details[:_SHOWN_DETAILS]
    for detail in shown:
        grid.add_row("", words((cut(detail, _LONGEST), "dim")))
    if len(shown) < len(details):
        more = plural(len(details) - len(shown), "more line")
        grid.add_row("", words((f"{more} with --all", "dim")))


def _figures(finding: Finding) -> RenderableType:
    """Severity, extent and waste, and beside or below them the source."""
    figures = joined((finding.severity.value, plural(finding.places, "site"), waste(finding)))
    return beside(words((figures, "bold")), words((cut(where(finding.source), 60), "dim")))


def waste(finding: Finding) -> str:
    """What a finding costs, in words."""
    return price(finding.saved_bytes, finding.saved_seconds, finding.held_bytes, finding.bytes)


def price(
    saved_bytes: int | None, saved_seconds: float | None, held_bytes: int | None, moved: int | None
) -> str:
    """What is wasted a step, else what is held, else what is moved; a figure of nothing is left out."""
    time = f"about {duration(saved_seconds)}" if saved_seconds else ""
    if saved_bytes:
        return f"{', '.join(t for t in (size(saved_bytes), time) if t)} wasted a step"
    if held_bytes and saved_bytes is None:
        return f"{size(held_bytes)} held at the peak"
    if time:
        return f"{f'{size(moved)} moved, ' if moved else ''}{time} wasted a step"
    if saved_bytes == 0:
        return "no bytes to save"
    if moved:
        return f"{size(moved)} moved a step, waste unknown"
    return "waste unknown" if moved is None else "no HBM bytes moved, waste unknown"


def _lacks_valid_share(finding: Finding) -> bool:
    """Whether the waste hangs on the share of valid rows, which a rule then has as unknown in its facts."""
    return finding.saved_bytes is None and finding.facts.get("valid_fraction", 1) is None
