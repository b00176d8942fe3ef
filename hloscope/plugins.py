"""Where rules come from: the files of `hloscope_rules`, and entry points of other distributions."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, distributions
from types import ModuleType

from hloscope.errors import UserError
from hloscope.rule import CODE, Rule

GROUP = "hloscope.rules"


def own_rules() -> Iterator[Rule]:
    """hloscope's own rules: one file each, found by being there."""
    import hloscope_rules

    for info in pkgutil.iter_modules(hloscope_rules.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{hloscope_rules.__name__}.{info.name}")
            yield from _rules_of(module)


def plugin_rules() -> Iterator[Rule]:
    """The rules of installed plug-ins: of each entry point in `GROUP`, which names a rule or a module of rules.

    Raises UserError for one that cannot be loaded or holds no rule: what is not checked must not look clean.
    """
    for point in sorted(installed_points(), key=lambda p: (p.name, p.value)):
        plugin = point.dist.name if point.dist else point.name
        rules = tuple(_rules_of(_loaded(point, plugin)))
        if not rules:
            raise UserError(f"the plug-in {plugin} has no rule in {point.value}; mend or uninstall it")
        for rule in rules:
            if not CODE.fullmatch(rule.code):
                raise UserError(
                    f"the plug-in {plugin} has a rule {rule.code!r}: codes are capitals and three digits, ACME101"
                )
            yield replace(rule, plugin=plugin)


def installed_points() -> Iterator[EntryPoint]:
    """The entry points of `GROUP`: as `importlib.metadata.entry_points` finds them, which reads the names and
    points of every distribution that is installed, and takes longer than all rules on a small module."""
    seen: set[tuple[str, str]] = set()  # of a distribution that is installed twice, the first counts
    for distribution in distributions():
        if GROUP not in (distribution.read_text("entry_points.txt") or ""):
            continue
        for point in distribution.entry_points.select(group=GROUP):
            if (distribution.name, point.name) not in seen:
                seen.add((distribution.name, point.name))
                yield point


def _loaded(point: EntryPoint, plugin: str) -> object:
    try:
        return point.load()
    except Exception as error:
        # Whatever its code raises, the one who ran hloscope is told which plug-in it is.
        raise UserError(
            f"the plug-in {plugin} cannot be loaded ({point.value}): {type(error).__name__}: {error}; "
            "mend or uninstall it"
        ) from error


def _rules_of(found: object) -> Iterator[Rule]:
    values = vars(found).values() if isinstance(found, ModuleType) else (found,)
    yield from (value for value in values if isinstance(value, Rule))
